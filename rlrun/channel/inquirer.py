"""The env worker's end of the lane: asks its rollout worker until a conversation is over.

The parts of its rows take turns: while one is answered, another simulates.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from rlrun.channel.lane import Lane, LaneAddress, LaneClosed, connect
from rlrun.channel.stages import Farewell
from rlrun.data.messages import ActionChunk, Observation
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


class Inquirer:
    """Keeps its connection from one conversation to the next."""

    def __init__(self, rank: int, telemetry: Telemetry, node: str, lost_after_s: float, deadline_s: float):
        """node: where this process runs. deadline_s: how long an answer may take."""
        self._rank, self._telemetry, self._node = rank, telemetry, node
        self._lost_after_s, self._deadline_s = lost_after_s, deadline_s
        self._lane: Lane | None = None
        self._address: LaneAddress | None = None

    def converse(
        self,
        talks: Sequence[Generator[Observation, ActionChunk, Any]],
        address: LaneAddress,
        rollout: str,
        conversation: int,
    ) -> list:
        """Answer the questions of every part by those of worker `rollout`; returns what the parts came to, in their
        order. Raises RunError.

        talks: of the parts; what one asks bears its number.
        """
        results: dict[int, Any] = {}
        try:
            self._reach(address)
            for part in range(len(talks)):
                self._go_on(talks, part, None, results, conversation)
            while len(results) < len(talks):
                with (
                    self._telemetry.span("wait for actions", rollout),
                    self._telemetry.waiting("actions", (rollout,), self._deadline_s),
                ):
                    part, reply = self._heard(conversation)
                if isinstance(reply, RunError):
                    raise reply
                self._go_on(talks, part, reply, results, conversation)
            return [results[part] for part in range(len(talks))]
        except LaneClosed as error:
            self._hang_up()
            raise _lost(rollout, error) from error
        finally:
            for part in set(range(len(talks))) - set(results):
                self._leave(conversation, part)

    def _go_on(
        self,
        talks: Sequence[Generator[Observation, ActionChunk, Any]],
        part: int,
        reply: ActionChunk | None,
        results: dict[int, Any],
        conversation: int,
    ) -> None:
        """Until the part asks, or is over."""
        try:
            observation = talks[part].send(reply)
        except StopIteration as finished:
            results[part] = finished.value
            self._leave(conversation, part)
            return
        self._lane.send((conversation, observation))

    def _heard(self, conversation: int) -> tuple[int, ActionChunk | RunError]:
        """The next answer to one of the parts; those that a conversation which broke off did not wait for go by."""
        while True:
            spoken, part, reply = self._lane.receive()
            if spoken == conversation:
                return part, reply

    def _reach(self, address: LaneAddress) -> None:
        if self._lane is None or self._address != address:
            self._hang_up()
            self._lane, self._address = connect(address, self._node, self._lost_after_s, self._deadline_s), address

    def _leave(self, conversation: int, part: int) -> None:
        """Free the others."""
        if self._lane is None:
            return
        try:
            self._lane.send((conversation, Farewell(self._rank, part)))
        except LaneClosed:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._lane is not None:
            self._lane.close()
            self._lane = None


def _lost(rollout: str, error: LaneClosed) -> RunError:
    return RunError(
        f"{rollout}.act: its process ended, or it cannot be reached",
        cause=str(error),
        remedy="see the worker's log in the run folder, and the kernel log for out-of-memory kills; where it runs, "
        "let no firewall stand between the nodes of the run",
        exit_status=ExitStatus.worker_lost,
        worker=rollout,
    )
