"""The rows of one rollout worker in groups: while those of one are inferred, the others simulate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rlrun.channel.rendezvous import Rendezvous, Reply
from rlrun.data.messages import ActionChunk, Observation
from rlrun.observability.telemetry import Telemetry


class Farewell(NamedTuple):
    """env -> rollout: a part of an env worker has no more questions.

    Example: Farewell(rank=3, part=0)
    """

    rank: int
    part: int


def stages_of(members: Collection[int], num_stages: int) -> list[list[int]]:
    """Neighbours share a group, sizes differ by one at most; no group is empty.

    Example: stages_of({0, 1, 2}, 2) == [[0, 1], [2]]
    """
    groups = np.array_split(sorted(members), min(num_stages, max(1, len(members))))
    return [group.tolist() for group in groups]


class Stages:
    """A `Rendezvous` for each group, over one policy that answers one group at a time.

    A group is some of the env workers, or, where each is in parts (`config.row_parts`), one part of all of them. Groups
    are fixed when a conversation opens, so here too no answer depends on timing.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Observation]], list[ActionChunk]],
        telemetry: Telemetry,
        num_stages: int,
        num_parts: int,
        turn: threading.Lock,
        deadline_s: float,
    ):
        """num_parts: of each env worker, `num_stages` at most. turn: held while the policy answers.
        deadline_s: how long a member may wait for the others of its group."""

        def act_in_turn(observations: Sequence[Observation]) -> list[ActionChunk]:
            with turn:
                return act(observations)

        self.num_parts = num_parts
        self._meetings = [Rendezvous(act_in_turn, telemetry, deadline_s) for _ in range(num_stages)]
        self._meeting_of: dict[tuple[int, int], Rendezvous] = {}  # by rank and part
        self.conversation = 0  # the newest that was opened

    def open(self, conversation: int, members: set[int]) -> None:
        """As `Rendezvous.open`, for all groups of these env workers."""
        groups = self._groups(members)
        groups += [[] for _ in range(len(self._meetings) - len(groups))]
        self._meeting_of = {
            member: meeting for meeting, group in zip(self._meetings, groups, strict=True) for member in group
        }
        for meeting, group in zip(self._meetings, groups, strict=True):
            meeting.open(conversation, {rank for rank, _ in group})
        self.conversation = conversation

    def _groups(self, members: set[int]) -> list[list[tuple[int, int]]]:
        if self.num_parts > 1:
            return [[(rank, part) for rank in members] for part in range(self.num_parts)]
        return [[(rank, 0) for rank in group] for group in stages_of(members, len(self._meetings))]

    def leave(self, conversation: int, gone: Farewell) -> None:
        """As `Rendezvous.leave`."""
        self._of(gone.rank, gone.part).leave(conversation, gone.rank)

    def ask(self, conversation: int, observation: Observation, asker: Hashable) -> None:
        """As `Rendezvous.ask`, in the asker's group."""
        self._of(observation.env_worker, observation.part).ask(conversation, observation, asker)

    def replies(self) -> Iterator[tuple[Hashable, Reply]]:
        """As `Rendezvous.replies`: those of a group are there before the pass of the next one begins."""
        for meeting in self._meetings:
            yield from meeting.replies()

    def _of(self, rank: int, part: int) -> Rendezvous:
        """Who is no member, of an older conversation, is turned away by any."""
        return self._meeting_of.get((rank, part), self._meetings[0])
