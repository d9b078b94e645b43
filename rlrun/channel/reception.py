"""The thread of a rollout worker that its env workers speak with: questions in, answers out."""

from __future__ import annotations

import selectors
import socket
import threading
import traceback
from collections.abc import Callable

from rlrun.channel.lane import Door, Lane, LaneAddress, LaneClosed
from rlrun.channel.lobby import Lobby, Visitor
from rlrun.channel.stages import Farewell, Stages
from rlrun.data.messages import Observation
from rlrun.observability.telemetry import Telemetry

_LOOK_S = 1.0  # how often a round is looked at although nobody came


class Reception(threading.Thread):
    """Accepts lanes, hands what they bring to the meetings, and brings back their replies.

    A lane carries (conversation, Observation) towards the rollout worker, each answered by (conversation, part,
    ActionChunk or RunError), and (conversation, Farewell) from a part that has no more questions. What comes before the
    driver's word that its conversation is open waits for that word.
    """

    def __init__(self, meetings: Stages, door: Door, telemetry: Telemetry, held_version: Callable[[], int] = lambda: 0):
        """held_version: the version of the weights in use; after each change `weights_changed` is called."""
        super().__init__(name="reception", daemon=True)
        self._meetings, self._door, self._telemetry = meetings, door, telemetry
        self._held_version = held_version
        self._early: list[tuple[int, Observation | Farewell, Lane]] = []
        self._bell, self._button = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._lobby = Lobby(door, self._selector)
        for source in (self._bell, *door.listeners):
            self._selector.register(source, selectors.EVENT_READ)
        self.start()

    @property
    def address(self) -> LaneAddress:
        """Where env workers reach it."""
        return self._door.address

    def open(self, conversation: int, members: set[int]) -> None:
        """As `Stages`."""
        self._meetings.open(conversation, members)
        self._button.send(b"!")

    def weights_changed(self) -> None:
        """Observations that need the new version may be answered now."""
        self._button.send(b"!")

    def leave(self, conversation: int, member: int) -> None:
        """An env worker is gone, with all its parts."""
        for part in range(self._meetings.num_parts):
            self._meetings.leave(conversation, Farewell(member, part))
        self._button.send(b"!")

    def run(self) -> None:
        """Until the process ends; whoever looks after the worker is told if it ends sooner."""
        try:
            while True:
                self._round()
        except BaseException:
            self._telemetry.fail(traceback.format_exc())
            raise

    def _round(self) -> None:
        for key, _ in self._selector.select(_LOOK_S):
            source = key.fileobj
            if source is self._bell:
                self._bell.recv(4096)
                early, self._early = self._early, []
                for conversation, said, lane in early:
                    self._take(conversation, said, lane)
            elif isinstance(source, Lane):
                self._hear(source)
            elif isinstance(source, Visitor):
                lane = self._lobby.hear(source)
                if lane is not None:
                    self._selector.register(lane, selectors.EVENT_READ)
            else:
                self._lobby.accept(source)
        self._lobby.clear()
        for (lane, *asked), reply in self._meetings.replies():
            self._tell(lane, (*asked, reply))

    def _hear(self, lane: Lane) -> None:
        try:
            conversation, said = lane.receive()
        except LaneClosed:
            self._dismiss(lane)
            return
        self._take(conversation, said, lane)

    def _take(self, conversation: int, said: Observation | Farewell, lane: Lane) -> None:
        if conversation > self._meetings.conversation or self._is_early(conversation, said):
            self._early.append((conversation, said, lane))
        elif isinstance(said, Farewell):
            self._meetings.leave(conversation, said)
        else:
            self._meetings.ask(conversation, said, (lane, conversation, said.part))

    def _is_early(self, conversation: int, said: Observation | Farewell) -> bool:
        """Whether an observation needs a policy version that is still on its way."""
        is_now = conversation == self._meetings.conversation
        return is_now and isinstance(said, Observation) and said.policy_version > self._held_version()

    def _tell(self, lane: Lane, reply: object) -> None:
        try:
            lane.send(reply)
        except LaneClosed:
            self._dismiss(lane)

    def _dismiss(self, lane: Lane) -> None:
        """Its process ended, which the driver sees as well."""
        if lane.fileno() >= 0:
            self._selector.unregister(lane)
            lane.close()
