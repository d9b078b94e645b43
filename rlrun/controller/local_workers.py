"""Workers of all roles in one process: for tests, small runs and the debugger."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rlrun.config.schema import RunConfig
from rlrun.controller.workers import Call, Future, Workers
from rlrun.edges.actions import ActionChunk
from rlrun.edges.batcher import split_into_groups
from rlrun.edges.observations import Observation
from rlrun.placement.plan import Plan
from rlrun.system.errors import RunError
from rlrun.system.status import Span, WorkerStatus
from rlrun.system.telemetry import Telemetry

# Text, because a worker's module is imported in its own process, after the environment variables that its libraries
# read have been set.
_WORKER_CLASSES = {
    "env": "rlrun.workers.env_worker:EnvWorker",
    "rollout": "rlrun.workers.rollout_worker:RolloutWorker",
    "actor": "rlrun.workers.actor_worker:ActorWorker",
}
_RECORDED = {
    "env": "rlrun.workers.recorder:RecordedEnvWorker",
    "actor": "rlrun.workers.recorded_actor:RecordedActorWorker",
}
_REPLAYED = {"actor": "rlrun.workers.recorded_actor:ReplayedActorWorker"}
T = TypeVar("T")


def make_worker(
    role: str, rank: int, config: RunConfig, environment: Mapping[str, str | None], python: str | None = None
) -> Any:
    """Make a worker with its telemetry. Sets `environment` before its libraries are imported; None removes a variable.

    python: interpreter of an env worker's simulator; None: this one.
    """
    for variable, value in environment.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    module, name = _worker_class(role, config).split(":")
    extra = {"python": python} if role == "env" else {}
    return getattr(importlib.import_module(module), name)(config, rank, Telemetry(f"{role}/{rank}"), **extra)


def _worker_class(role: str, config: RunConfig) -> str:
    """Return the class of a worker: its role's, or one that also records or replays."""
    special = _REPLAYED if config.replay.path is not None else _RECORDED if config.record.num_steps else {}
    return (_WORKER_CLASSES | special)[role]


class LocalWorkers(Workers):
    """Runs requests in the caller's thread, and episodes once a result is needed. Deadlines have no effect."""

    def __init__(self, config: RunConfig, plan: Plan, roles: Sequence[str]):
        """Make the plan's workers, without its environment variables: the process keeps its user's environment."""
        self.plan = plan
        self._config = config
        self.sizes = {role: len(plan.of(role)) for role in roles}
        self._workers = {
            (slot.role, slot.rank): make_worker(slot.role, slot.rank, config, {}, slot.interpreter)
            for role in roles
            for slot in plan.of(role)
        }
        self._groups = [  # (rollout worker, its env workers that are answered in one batch)
            (rollout, group)
            for rollout in range(self.sizes.get("rollout", 0))
            for group in split_into_groups(self._envs_of(rollout), config.rollout.pipeline_stages)
        ]

    def _envs_of(self, rollout: int) -> list[int]:
        return [env for env in range(self.sizes.get("env", 0)) if self.rollout_of(env) == rollout]

    def submit(self, role: str, rank: int, call: Call) -> Future[Any]:
        values = [argument.reference() if isinstance(argument, Future) else argument for argument in call.arguments]
        value = getattr(self._workers[role, rank], call.method)(*values)
        return Future(f"{role}/{rank}", call.method, lambda: value)

    def run_episodes(
        self, calls: Mapping[int, Call], num_returns: Mapping[int, int]
    ) -> dict[int, tuple[Future[Any], ...]]:
        """See `Workers.run_episodes`. Runs nothing before a value is needed; by then the weights have been sent."""
        running = _Episodes(self, calls)
        return {
            rank: tuple(
                Future(f"env/{rank}", call.method, partial(running.value, rank, index))
                for index in range(num_returns[rank])
            )
            for rank, call in calls.items()
        }

    def run(self, calls: Mapping[int, Call]) -> dict[int, tuple[Any, ...]]:
        """Run generator methods of env workers, by rank, until all have ended. Returns their results."""
        talks = {
            rank: getattr(self._workers["env", rank], call.method)(*call.arguments) for rank, call in calls.items()
        }
        results: dict[int, tuple[Any, ...]] = {}
        answers: dict[int, Any] = dict.fromkeys(talks)
        while answers:
            observations = {}
            for rank, answer in answers.items():
                try:
                    observations[rank] = talks[rank].send(answer)
                except StopIteration as finished:
                    results[rank] = finished.value
            answers = self._answers(observations)
        return results

    def _answers(self, observations: dict[int, Observation]) -> dict[int, ActionChunk]:
        """Answer observations; each rollout worker takes those of a group of its env workers in one batch."""
        answers: dict[int, ActionChunk] = {}
        for rank, group in self._groups:
            asking = [env for env in group if env in observations]
            if asking:
                rollout = self._workers["rollout", rank]
                needed = max(observations[env].policy_version for env in asking)
                if rollout.policy_version < needed:
                    raise RuntimeError(f"rollout/{rank} holds version {rollout.policy_version}, not yet {needed}")
                chunks = rollout.act([observations[env] for env in asking])
                answers.update(zip(asking, chunks, strict=True))
        return answers

    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        return [future.reference() for future in futures]

    def outcomes(
        self, futures: Sequence[Future[T]], subject: str, deadline_s: float, on_failure: Callable[[RunError], None]
    ) -> list[T | RunError]:
        return [future.reference() for future in futures]

    def configure(self, config: RunConfig) -> None:
        self._config = config

    def replace(self, role: str, rank: int) -> list[tuple[str, int]]:
        self._workers[role, rank].close()
        self._workers[role, rank] = make_worker(role, rank, self._config, {}, self.plan.slot(role, rank).interpreter)
        return [(role, rank)]

    def address(self, role: str, rank: int) -> str:
        return "127.0.0.1"

    def statuses(self) -> list[WorkerStatus]:
        return [worker.telemetry.status() for worker in self._workers.values()]

    def spans(self) -> dict[str, list[Span]]:
        return {worker.telemetry.worker: worker.telemetry.drain_spans() for worker in self._workers.values()}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


class _Episodes:
    """Generator methods of env workers, which run when a value is needed for the first time."""

    def __init__(self, workers: LocalWorkers, calls: Mapping[int, Call]):
        self._workers = workers
        self._calls = calls
        self._results: dict[int, tuple[Any, ...]] | None = None

    def value(self, rank: int, index: int) -> Any:
        if self._results is None:
            self._results = self._workers.run(self._calls)
        return self._results[rank][index]
