"""Counts an env worker's chunk steps in a training step, by which a broken simulator differs from its peers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.reports import EnvTally

_LINES = 4  # of a picture, which are looked at first: all others only where these are suspicious
_ROUGHEST = 48.0  # mean difference of neighbouring pixels, 0..255; random bytes have 85, usual pictures 2 to 4


@dataclass
class _Running:
    """The running episode of a row."""

    first: np.ndarray  # float32 [P], proprioception at its start
    last: np.ndarray  # float32 [P], after its last chunk
    actions: np.ndarray  # float32 [C, A], of its last chunk
    num_moves: int  # chunks in which the robot moved
    has_moved: bool  # whether a number of the state changed after the first of them
    changed: np.ndarray  # bool [N], cameras whose picture changed in one of them, after the first


class StepTally:
    """The tally of one env worker.

    Example::

        tally = StepTally(*env.spaces.limits)
        tally.add(rows, perceived, chunk.actions, result)   # after every chunk
        tally.drain()                                       # after the training step
    """

    def __init__(self, action_low: np.ndarray, action_high: np.ndarray):
        """Limits: float32 [A]."""
        self._low = action_low
        self._high = action_high
        self._running: dict[int, _Running] = {}  # by row
        self._range: tuple[np.ndarray, np.ndarray] | None = None  # least and largest proprioception so far, [P]
        self._farthest = np.zeros(1, np.float32)  # largest distance from the start of an episode so far, [P]
        self._used = 0.0  # largest share of the actions' limits so far
        self._start()

    def _start(self) -> None:
        self._num_chunk_steps = self._num_paid = self._num_moves = self._num_outside = self._num_actions = 0
        self._num_odd = self._num_episodes = 0
        self._num_frozen = self._num_still = np.zeros(0, int)  # [N]; empty before the first move
        self._instructions: set[str] = set()
        self._row_episodes: Counter[int] = Counter()
        self._row_still: Counter[int] = Counter()

    def add(self, rows: np.ndarray, before: Frames, actions: np.ndarray, result: ChunkResult) -> None:
        """Count one chunk of `rows` (int [R]). before: R rows; actions: float32 [R, C, A]; result: B rows."""
        self._num_chunk_steps += len(rows)
        self._num_paid += int(result.rewards[rows].any(axis=1).sum())
        self._num_outside += int(((actions < self._low) | (actions > self._high)).sum())
        self._num_actions += actions.size
        self._instructions |= set(before.instructions)
        half = (self._high - self._low) / 2
        if np.isfinite(half).all():
            moves = half > 0  # a number with one allowed value has no range to use
            share = np.abs(actions - (self._low + half))[..., moves] / half[moves]
        else:
            share = np.ones(1)  # unknown
        self._used = max(self._used, float(share.max(initial=0.0)))
        is_sound = ~result.infra_fault[rows]
        self._num_odd += int((_are_odd(result.frames.images, rows) & is_sound).sum())
        has_moved = (before.proprio != result.frames.proprio[rows]).any(axis=1)
        firsts = []
        for i, row in enumerate(rows.tolist()):
            if is_sound[i]:
                firsts.append(
                    self._add_row(row, before.proprio[i], before.images[i], actions[i], bool(has_moved[i]), result)
                )
            elif row in self._running:
                self._end(row)
        if firsts:
            self._add_reach(np.array(firsts), result.frames.proprio[rows[is_sound]])

    def _add_row(
        self, row: int, start: np.ndarray, seen: np.ndarray, actions: np.ndarray, has_moved: bool, result: ChunkResult
    ) -> np.ndarray:
        """Count one chunk of a row. Before it: start, float32 [P], and seen, uint8 [N, H, W, 3]; actions: float32
        [C, A]. has_moved: whether the state is another one than before. Returns the first state of the episode, [P]."""
        now = result.frames.proprio[row]
        shown = result.frames.images[row]
        running = self._running.get(row)
        if running is not None and not np.array_equal(running.last, start):
            self._end(row)  # a reset came between
            running = None
        has_new_actions = running is not None and not np.array_equal(running.actions, actions)
        if running is None:
            running = self._running[row] = _Running(start.copy(), now, actions, 0, False, np.zeros(len(seen), bool))
        running.last = now.copy()
        running.actions = actions.copy()
        if result.ended[row]:
            self._end(row)
        elif has_new_actions or has_moved:
            self._num_moves += 1
            running.num_moves += 1
            running.has_moved |= has_moved
            if len(seen):
                is_frozen = _are_equal(seen, shown)
                if running.num_moves > 1:  # the picture of a reset may be true, and that of each chunk an old one
                    running.changed |= ~is_frozen
                self._num_frozen = self._num_frozen + is_frozen if self._num_frozen.size else is_frozen.astype(int)
        return running.first

    def _add_reach(self, firsts: np.ndarray, now: np.ndarray) -> None:
        """Add how far the states, float32 [R, P], came from those at the start of their episodes."""
        states = np.concatenate([firsts, now])
        low = states.min(axis=0)
        high = states.max(axis=0)
        if self._range is not None:
            low = np.minimum(self._range[0], low)
            high = np.maximum(self._range[1], high)
        self._range = low, high
        if now.size:
            self._farthest = np.maximum(self._farthest, np.abs(now - firsts).max(axis=0))

    def _end(self, row: int) -> None:
        """Count the running episode of a row, which is over, if its robot moved in two chunks or more."""
        running = self._running.pop(row)
        if running.num_moves > 1:
            self._num_episodes += 1
            if running.first.size:
                self._row_episodes[row] += 1
                self._row_still[row] += not running.has_moved
            still = (~running.changed).astype(int)
            self._num_still = self._num_still + still if self._num_still.size else still

    def drain(self) -> EnvTally:
        """Return the tally since the last call."""
        rows = range(max(self._row_episodes, default=-1) + 1)  # a row without an episode has 0
        tally = EnvTally(
            num_chunk_steps=self._num_chunk_steps,
            num_paid=self._num_paid,
            num_moves=self._num_moves,
            num_frozen=tuple(self._num_frozen.tolist()),
            outside=self._num_outside / max(1, self._num_actions),
            instructions=tuple(sorted(self._instructions)),
            num_odd=self._num_odd,
            num_moved_episodes=self._num_episodes,
            num_still=tuple(self._num_still.tolist()),
            reach=self._reach(),
            used=self._used,
            row_episodes=tuple(self._row_episodes[row] for row in rows),
            row_still=tuple(self._row_still[row] for row in rows),
        )
        self._start()
        return tally

    def _reach(self) -> float:
        """Return how far a number of the state came from its start at most, as a share of its range; 1: unknown."""
        if self._range is None or not self._range[0].size:
            return 1.0
        width = self._range[1] - self._range[0]
        return float((self._farthest / np.maximum(width, 1e-30)).max()) if width.any() else 1.0


def _are_odd(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return whether pictures of rows are blank or noise, bool [R]. images: uint8 [B, N, H, W, 3]; rows: int [R]."""
    if not len(rows) or not images[0].size:
        return np.zeros(len(rows), bool)
    lines = images[rows, :, :: _stride(images)]
    is_odd = _are_blank(lines) | _are_noisy(lines)
    if is_odd.any():
        is_odd[is_odd] = _are_blank(images[rows[is_odd]]) | _are_noisy(images[rows[is_odd]])
    return is_odd


def _are_blank(images: np.ndarray) -> np.ndarray:
    """Return whether all pixels of all cameras are equal, bool [R]. images: uint8 [R, N, H, W, 3]."""
    pixels = images.reshape(len(images), -1)
    return pixels.min(axis=1) == pixels.max(axis=1)


def _are_noisy(images: np.ndarray) -> np.ndarray:
    """Return whether the pixels of a camera are unlike their neighbours, bool [R]. images: uint8 [R, N, H, W, 3]."""
    across = np.abs(np.diff(images.astype(np.int16), axis=3))
    sums = across.sum(axis=(2, 3, 4))  # in a third of the time of the mean
    return sums.max(axis=1) > _ROUGHEST * across[0, 0].size


def _are_equal(seen: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Return whether each camera shows what it showed, bool [N]. seen, shown: uint8 [N, H, W, 3]."""
    stride = _stride(seen)
    is_equal = (seen[:, ::stride] == shown[:, ::stride]).all(axis=(1, 2, 3))
    if is_equal.any():
        is_equal &= (seen == shown).all(axis=(1, 2, 3))
    return is_equal


def _stride(images: np.ndarray) -> int:
    """Return the distance of the lines that are looked at first. images: uint8 [..., H, W, 3]."""
    return max(1, images.shape[-3] // _LINES)
