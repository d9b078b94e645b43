"""The env workers of one rollout worker in groups: while the rows of one are inferred, the others simulate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

import numpy as np

from rlrun.cluster.rendezvous import Rendezvous, Reply
from rlrun.data.messages import ActionChunk, Observation
from rlrun.observability.telemetry import Telemetry


def stages_of(members: Collection[int], num_stages: int) -> list[list[int]]:
    """Neighbours share a group, sizes differ by one at most; no group is empty.

    Example: stages_of({0, 1, 2}, 2) == [[0, 1], [2]]
    """
    groups = np.array_split(sorted(members), min(num_stages, max(1, len(members))))
    return [group.tolist() for group in groups]


class Stages:
    """A `Rendezvous` for each group, over one policy that answers one group at a time.

    Groups are fixed when a conversation opens, so here too no answer depends on timing.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Observation]], list[ActionChunk]],
        telemetry: Telemetry,
        num_stages: int,
        turn: threading.Lock,
        deadline_s: float,
    ):
        """turn: held while the policy answers. deadline_s: how long a member may wait for the others of its group."""

        def act_in_turn(observations: Sequence[Observation]) -> list[ActionChunk]:
            with turn:
                return act(observations)

        self._meetings = [Rendezvous(act_in_turn, telemetry, deadline_s) for _ in range(num_stages)]
        self._meeting_of: dict[int, Rendezvous] = {}
        self.conversation = 0  # the newest that was opened

    def open(self, conversation: int, members: set[int]) -> None:
        """As `Rendezvous.open`, for all groups."""
        groups = stages_of(members, len(self._meetings))
        groups += [[] for _ in range(len(self._meetings) - len(groups))]
        self._meeting_of = {
            member: meeting for meeting, group in zip(self._meetings, groups, strict=True) for member in group
        }
        for meeting, group in zip(self._meetings, groups, strict=True):
            meeting.open(conversation, set(group))
        self.conversation = conversation

    def leave(self, conversation: int, member: int) -> None:
        """As `Rendezvous.leave`."""
        self._of(member).leave(conversation, member)

    def ask(self, conversation: int, observation: Observation, asker: Hashable) -> None:
        """As `Rendezvous.ask`, in the asker's group."""
        self._of(observation.env_worker).ask(conversation, observation, asker)

    def replies(self) -> Iterator[tuple[Hashable, Reply]]:
        """As `Rendezvous.replies`: those of a group are there before the pass of the next one begins."""
        for meeting in self._meetings:
            yield from meeting.replies()

    def _of(self, member: int) -> Rendezvous:
        """Who is no member, of an older conversation, is turned away by any."""
        return self._meeting_of.get(member, self._meetings[0])
