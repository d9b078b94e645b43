"""The whole system in one process: for tests, small runs and the debugger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlrun.channel.batcher import groups_of
from rlrun.config.schema import RunConfig
from rlrun.controller.worker_factory import make_worker
from rlrun.controller.worker_group import Pending, Processes
from rlrun.data.messages import Span, WorkerStatus
from rlrun.placement.plan import Plan
from rlrun.system.errors import RunError


class LocalProcesses(Processes):
    """Requests run at once, in the caller's thread; deadlines cannot be kept and are not pretended."""

    is_concurrent = False

    def __init__(self, config: RunConfig, plan: Plan, roles: Sequence[str]):
        """The plan's environment variables are left out: one process has one environment, its user's."""
        self.plan = plan
        self._config = config
        self._num_groups = config.rollout.pipeline_stages
        self.sizes = {role: len(plan.of(role)) for role in roles}
        self._workers = {
            (slot.role, slot.rank): make_worker(slot.role, slot.rank, config, {}, slot.interpreter)
            for role in roles
            for slot in plan.of(role)
        }

    def launch(self, role: str) -> None:
        """All are there from the beginning."""

    def submit(self, role: str, rank: int, method: str, *arguments: Any) -> Pending:
        values = [argument.value if isinstance(argument, Pending) else argument for argument in arguments]
        return Pending(f"{role}/{rank}", method, getattr(self._workers[role, rank], method)(*values))

    def converse(
        self, method: str, arguments: Mapping[int, tuple], num_returns: Mapping[int, int], is_held: bool = False
    ) -> dict[int, tuple[Pending, ...]]:
        talks = {rank: getattr(self._workers["env", rank], method)(*args) for rank, args in arguments.items()}
        groups = [
            (rollout, group)
            for rollout in range(self.sizes["rollout"])
            for group in groups_of([rank for rank in talks if self.rollout_of(rank) == rollout], self._num_groups)
        ]
        results: dict[int, tuple] = {}
        answers: dict[int, Any] = dict.fromkeys(talks)
        while answers:
            questions = {}
            for rank, answer in answers.items():
                try:
                    questions[rank] = talks[rank].send(answer)
                except StopIteration as finished:
                    results[rank] = finished.value
            answers = self._answers(questions, groups)
        return {rank: tuple(Pending(f"env/{rank}", method, value) for value in results[rank]) for rank in talks}

    def open(self) -> None:
        """Nothing is held here."""

    def _answers(self, questions: dict[int, Any], groups: list[tuple[int, list[int]]]) -> dict[int, Any]:
        """Each rollout worker takes the questions of a group of its env workers in one batch."""
        answers: dict[int, Any] = {}
        for rollout, group in groups:
            mine = [rank for rank in group if rank in questions]
            if mine:
                chunks = self._workers["rollout", rollout].act([questions[rank] for rank in mine])
                answers.update(zip(mine, chunks, strict=True))
        return answers

    def wait(self, pendings: Sequence[Pending], subject: str, deadline_s: float) -> list[Any]:
        return [pending.value for pending in pendings]

    def outcomes(
        self, pendings: Sequence[Pending], subject: str, deadline_s: float, on_failure: Callable[[RunError], None]
    ) -> list[Any]:
        return self.wait(pendings, subject, deadline_s)

    def replace(self, role: str, rank: int) -> list[tuple[str, int]]:
        self._workers[role, rank].close()
        self._workers[role, rank] = make_worker(role, rank, self._config, {}, self.plan.slot(role, rank).interpreter)
        return [(role, rank)]

    def address(self, role: str, rank: int) -> str:
        return "127.0.0.1"

    def share_memory(self, role: str, rank: int, other: str) -> bool:
        return False  # one process: a request's answer is the object itself

    def statuses(self) -> list[WorkerStatus]:
        return [worker.telemetry.status() for worker in self._workers.values()]

    def spans(self) -> dict[str, list[Span]]:
        return {worker.telemetry.worker: worker.telemetry.drain_spans() for worker in self._workers.values()}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
