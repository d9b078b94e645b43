"""Where the env workers of one rollout worker meet, so that their rows share one forward pass."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager

from rlrun.data.messages import ActionChunk, Observation
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

Reply = ActionChunk | RunError


class Rendezvous:
    """A round is complete when every member has asked; one forward pass then answers all.

    Always the same members in the same order: what a policy answers never depends on timing. `ask` and `replies` are
    called by one thread, `open` and `leave` by any.
    """

    def __init__(
        self, act: Callable[[Sequence[Observation]], list[ActionChunk]], telemetry: Telemetry, deadline_s: float
    ):
        """deadline_s: how long a member may wait for the others."""
        self._act = act
        self._telemetry = telemetry
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._conversation = 0
        self._members: set[int] = set()
        self._questions: dict[int, tuple[Observation, Hashable]] = {}  # by member, with whom to answer
        self._since = 0.0  # the first question of the round
        self._rejected: list[tuple[Hashable, Reply]] = []  # who asked in an older conversation
        self._missing: tuple[str, ...] = ()  # whom the round waits for; replaced whole, so it is read without the lock
        self._waiting: AbstractContextManager | None = None

    def open(self, conversation: int, members: set[int]) -> None:
        """A new conversation with these env workers; whoever still waits in an older one is turned away."""
        with self._lock:
            self._rejected += [(asker, self._over(m)) for m, (_, asker) in self._questions.items()]
            self._conversation = conversation
            self._members = set(members)
            self._questions.clear()

    def leave(self, conversation: int, member: int) -> None:
        """An env worker has no more questions, or died; the others no longer wait for it."""
        with self._lock:
            if conversation == self._conversation:
                self._members.discard(member)

    def ask(self, conversation: int, observation: Observation, asker: Hashable) -> None:
        """A member's question; `replies` will name `asker` beside its answer, once."""
        with self._lock:
            member = observation.env_worker
            if conversation != self._conversation:
                self._rejected.append((asker, self._over(member, conversation)))
                return
            if not self._questions:
                self._since = time.monotonic()
            self._questions[member] = observation, asker

    def replies(self) -> list[tuple[Hashable, Reply]]:
        """(asker, answer) for everyone who can be told something now; runs the forward pass of a complete round."""
        with self._lock:
            told, self._rejected = self._rejected, []
            missing = sorted(self._members - set(self._questions)) if self._questions else []
            self._missing = tuple(f"env/{member}" for member in missing)
            if missing and time.monotonic() > self._since + self._deadline_s:
                told += [(asker, self._late(member, missing)) for member, (_, asker) in self._questions.items()]
                self._questions.clear()
            is_complete = bool(self._questions) and not missing
            conversation, round_ = self._conversation, dict(sorted(self._questions.items())) if is_complete else {}
            if is_complete:
                self._questions.clear()
            self._watch(bool(self._questions))
        return told + self._answered(conversation, round_) if round_ else told

    def _answered(
        self, conversation: int, round_: dict[int, tuple[Observation, Hashable]]
    ) -> list[tuple[Hashable, Reply]]:
        askers = [asker for _, asker in round_.values()]
        try:
            chunks: Sequence[Reply] = self._act([observation for observation, _ in round_.values()])
        except RunError as failure:
            chunks = [failure] * len(round_)
        except Exception as failure:  # whatever a policy raises: those who asked must hear of it
            chunks = [_failed(self._telemetry.worker, failure)] * len(round_)
        with self._lock:
            if conversation != self._conversation:  # the driver gave it up meanwhile
                chunks = [self._over(member, conversation) for member in round_]
        return list(zip(askers, chunks, strict=True))

    def _watch(self, is_waiting: bool) -> None:
        """Keep the telemetry's wait open while a round is incomplete."""
        if is_waiting and self._waiting is None:
            self._waiting = self._telemetry.waiting("observations", lambda: self._missing, self._deadline_s)
            self._waiting.__enter__()
        elif not is_waiting and self._waiting is not None:
            self._waiting.__exit__(None, None, None)
            self._waiting = None

    def _over(self, member: int, conversation: int | None = None) -> RunError:
        spoken = self._conversation if conversation is None else conversation
        return RunError(
            f"env worker {member} speaks in conversation {spoken}, which is over",
            cause="the driver gave it up after a worker was lost",
            exit_status=ExitStatus.worker_lost,
        )

    def _late(self, member: int, missing: list[int]) -> RunError:
        return RunError(
            f"env worker {member} waited {self._deadline_s:.0f} s for env workers {missing} to ask for their actions",
            cause="they share one rollout worker, which answers them together",
            remedy="look at the logs and stacks of the missing ones",
            exit_status=ExitStatus.stalled,
            worker=f"env/{missing[0]}",
        )


def _failed(worker: str, failure: Exception) -> RunError:
    return RunError(
        f"{worker}.act failed: {type(failure).__name__}: {failure}",
        cause="".join(traceback.format_exception(failure)).strip(),
        remedy="the worker's log in the run folder has what came before",
        exit_status=ExitStatus.unexpected,
        worker=worker,
    )
