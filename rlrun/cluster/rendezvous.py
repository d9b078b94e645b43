"""Where the env workers of one rollout worker meet, so that their rows share one forward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rlrun.config.errors import RunError
from rlrun.config.exit_status import ExitStatus
from rlrun.data.messages import ActionChunk, Observation
from rlrun.observability.telemetry import Telemetry


class Rendezvous:
    """A round is complete when every member has asked; the last to come runs it for all.

    Always the same members in the same order: what a policy answers never depends on timing.
    """

    def __init__(self, act: Callable[[Sequence[Observation]], list[ActionChunk]], telemetry: Telemetry):
        self._act = act
        self._telemetry = telemetry
        self._changed = threading.Condition()
        self._conversation = 0
        self._members: set[int] = set()
        self._questions: dict[int, Observation] = {}
        self._answers: dict[int, ActionChunk] = {}
        self._failure: Exception | None = None
        self._missing: tuple[str, ...] = ()  # whom the round waits for; replaced whole, so it is read without the lock

    def open(self, conversation: int, members: set[int]) -> None:
        """A new conversation with these env workers; whoever still waits in an older one is turned away."""
        with self._changed:
            self._conversation = conversation
            self._members = set(members)
            self._questions.clear()
            self._answers.clear()
            self._failure = None
            self._missing = ()
            self._changed.notify_all()

    def leave(self, conversation: int, member: int) -> None:
        """An env worker has no more questions, or died; the others no longer wait for it."""
        with self._changed:
            if conversation == self._conversation:
                self._members.discard(member)
                self._run_if_complete()

    def act(self, conversation: int, observation: Observation, deadline_s: float) -> ActionChunk:
        """Ask, and wait for the round. Raises what the forward pass raised, or RunError naming who is missing."""
        me = observation.env_worker
        with self._changed:
            self._check_current(conversation, me)
            self._questions[me] = observation
            self._run_if_complete()

            def is_over() -> bool:
                return me in self._answers or self._failure is not None or conversation != self._conversation

            with self._telemetry.waiting("observations", lambda: self._missing, deadline_s):
                is_answered = self._changed.wait_for(is_over, deadline_s)
            if not is_answered:
                missing = sorted(self._members - set(self._questions))
                raise RunError(
                    f"env worker {me} waited {deadline_s:.0f} s for env workers {missing} to ask for their actions",
                    cause="they share one rollout worker, which answers them together",
                    remedy="look at the logs and stacks of the missing ones",
                    exit_status=ExitStatus.stalled,
                    worker=f"env/{missing[0]}" if missing else None,
                )
            self._check_current(conversation, me)
            if self._failure is not None:
                raise self._failure
            return self._answers.pop(me)

    def _check_current(self, conversation: int, member: int) -> None:
        if conversation != self._conversation:
            raise RunError(
                f"env worker {member} speaks in conversation {conversation}; {self._conversation} is going on",
                cause="the driver gave up the older one after a worker was lost",
                exit_status=ExitStatus.worker_lost,
            )

    def _run_if_complete(self) -> None:
        missing = sorted(self._members - set(self._questions)) if self._questions else []
        self._missing = tuple(f"env/{member}" for member in missing)
        if not self._questions or missing:
            return
        order = sorted(self._questions)
        try:
            chunks = self._act([self._questions[member] for member in order])
            self._answers.update(zip(order, chunks, strict=True))
        except Exception as failure:
            self._failure = failure
        self._questions.clear()
        self._changed.notify_all()
