"""The same actions in a data set and in the world, and measures by which the two are compared.

Shape legend: R starts, K control steps, P numbers of the state, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rlrun.edges.world_sample import WorldSample

if TYPE_CHECKING:
    from rlrun.data.lerobot.reader import DatasetInfo
    from rlrun.edges.spaces import Spaces

NUM_STEPS = 8  # control steps with the actions of an episode, of which each start is followed
MIN_STARTS = 4  # of the world
MAX_STARTS = 8
MANY_EPISODES = 10  # of a data set; the ranges of fewer prove little
NOTHING = 1e-6  # numbers of this size are zero
SAME_WAY = 0.8  # correlation of two motions, above which they are one, and below its negative the reverse
MIN_MOTIONS = 12  # pairs of steps that are compared
_SAME_SIZE = 1.5  # times, by which two motions of one size may differ
_CLEARLY = 2.0  # deviations, by which a mean is of one sign
MOST = 0.5  # a larger share is most


@dataclass(frozen=True, eq=False)
class Replay:
    """The begins of R episodes of the data set, and what the world answered to their actions."""

    sample: WorldSample
    actions: np.ndarray  # float32 [R, K, A]
    state: np.ndarray  # float32 [R, K+1, P], of the data set; NaN after the end of an episode
    rewards: np.ndarray  # float32 [R, K]; NaN after the end

    @classmethod
    def of(cls, data: DatasetInfo, sample: WorldSample | None) -> Replay | None:
        """Return the same frames of both; None: the world was not started."""
        if sample is None or data.state is None or data.lengths is None or data.actions is None:
            return None
        num_rows, num_steps = sample.rewards.shape
        frames, is_there = first_frames(data.lengths, num_rows, num_steps + 1)
        state = np.where(is_there[..., None], data.state[frames], np.nan)
        rewards = np.full((num_rows, num_steps), np.nan)
        if data.rewards is not None:
            rewards = np.where(is_there[:, :-1], data.rewards[frames[:, :-1]], np.nan)
        return cls(sample, data.actions[frames[:, :-1]], state, rewards)

    def motions(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps of one number of the state in the data set and in the world, where both have them."""
        ours = np.diff(self.state[..., number], axis=1)
        theirs = np.diff(self.sample.proprio[..., number], axis=1)
        both = np.isfinite(ours) & np.isfinite(theirs)
        return ours[both], theirs[both]

    @cached_property
    def reversed_numbers(self) -> dict[int, int]:
        """Return the numbers of the state that move the other way in the world, with the action that moves each."""
        found = {}
        for number in range(self.state.shape[2]):
            if likeness_of(*self.motions(number)) < -SAME_WAY:
                steps = np.diff(self.sample.proprio[..., number], axis=1)
                there = np.isfinite(steps)
                pulls = [abs(likeness_of(steps[there], of[there])) for of in np.moveaxis(self.actions, 2, 0)]
                found[number] = int(np.argmax(pulls)) if max(pulls) > SAME_WAY else -1
        return found

    @cached_property
    def reversed_actions(self) -> set[int]:
        """Return the actions of the other sign: they move numbers the other way that have one sign at the starts.

        Also those that are targets: the data set moves to the negative of the action, and the world to the action.
        """
        found = {action for number, action in self.reversed_numbers.items() if self._same_sign(number) > 0}
        return (found - {-1}) | self._reversed_targets()

    def has_recorded_effect(self, action: int) -> bool:
        """Return whether a number of the state moves with an action, in the world as far as in the data set."""
        for number in range(self.state.shape[2]):
            ours, theirs = self.motions(number)
            steps = np.diff(self.sample.proprio[..., number], axis=1)
            there = np.isfinite(steps)
            is_moved = likeness_of(steps[there], self.actions[..., action][there]) > SAME_WAY
            sizes = size_of(ours), size_of(theirs)
            if is_moved and likeness_of(ours, theirs) > SAME_WAY and max(sizes) < _SAME_SIZE * min(sizes):
                return True
        return False

    def _same_sign(self, number: int) -> float:
        """Return 1 if the starts of both clearly have one sign, -1 if they have two, 0 if they may have either."""
        starts = self.state[:, 0, number], self.sample.proprio[:, 0, number]
        if any(abs(one.mean()) <= _CLEARLY * one.std() for one in starts):
            return 0.0
        return float(np.sign(starts[0].mean() * starts[1].mean()))

    def _reversed_targets(self) -> set[int]:
        found = set()
        for number in range(self.state.shape[2]):
            ours = self.state[..., number]
            theirs = self.sample.proprio[..., number]
            both = np.isfinite(np.diff(ours, axis=1)) & np.isfinite(np.diff(theirs, axis=1))
            if both.sum() < MIN_MOTIONS or self._same_sign(number) < 0:
                continue
            for action in range(self.actions.shape[2]):
                target = self.actions[..., action]
                pulls = [
                    likeness_of(np.diff(state, axis=1)[both], (sign * target - state[:, :-1])[both])
                    for state, sign in ((ours, -1), (theirs, 1), (ours, 1), (theirs, -1))
                ]
                if min(pulls[:2]) > SAME_WAY and max(pulls[2:]) < 0:
                    found.add(action)
        return found


def replayed_actions(data: DatasetInfo, spaces: Spaces, num_rows: int) -> np.ndarray | None:
    """Return the first actions of R episodes, float32 [R, K, A], to be made in the world; None: it takes others.

    After the end of an episode its last action repeats.
    """
    if data.actions is None or data.lengths is None or data.num_actions != spaces.num_actions:
        return None
    frames, _ = first_frames(data.lengths, num_rows, NUM_STEPS)
    return data.actions[frames]


def first_frames(lengths: np.ndarray, num_rows: int, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first frames of R episodes, int [R, K], evenly distributed, and whether the episode has them."""
    ends = np.cumsum(lengths)
    chosen = np.linspace(0, len(lengths) - 1, num_rows).round().astype(int)
    frames = (ends - lengths)[chosen][:, None] + np.arange(num_steps)
    is_there = frames < ends[chosen][:, None]
    return np.minimum(frames, ends[chosen][:, None] - 1), is_there


def begins(lengths: np.ndarray | None) -> np.ndarray:
    return np.zeros(1, int) if lengths is None else np.cumsum(lengths) - lengths


def size_of(values: np.ndarray) -> float:
    """Return the root of the mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if len(values) else 0.0


def is_moving(steps: np.ndarray, tiny: float) -> bool:
    """Return whether most steps are motions."""
    return len(steps) > 0 and float((np.abs(steps) > tiny).mean()) >= MOST


def likeness_of(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the correlation, without taking off the means, of two motions; 0 if there are too few."""
    norms = size_of(ours) * size_of(theirs)
    return float(np.mean(ours * theirs, dtype=np.float64)) / norms if len(ours) >= MIN_MOTIONS and norms > 0 else 0.0
