"""Counts an env worker's chunk steps in a training step, by which a broken simulator differs from its peers."""

from __future__ import annotations

import numpy as np

from rlrun.data.messages import ChunkResult, EnvTally, Frames

_LINES = 4  # one of so many lines of a picture is compared


class StepTally:
    """The tally of one env worker.

    Example::

        tally = StepTally(env.action_low, env.action_high)
        tally.add(rows, perceived, chunk.actions, result)   # after every chunk
        tally.drain()                                       # after the training step
    """

    def __init__(self, action_low: np.ndarray, action_high: np.ndarray):
        """Limits: float32 [A]."""
        self._low, self._high = action_low, action_high
        self._before: dict[int, np.ndarray] = {}  # by row: the actions of its last chunk in the running episode
        self._start()

    def _start(self) -> None:
        self._num_chunk_steps = self._num_paid = self._num_moves = self._num_outside = self._num_actions = 0
        self._num_frozen = np.zeros(0, int)  # [N]; empty before the first move
        self._instructions: set[str] = set()

    def add(self, rows: np.ndarray, before: Frames, actions: np.ndarray, result: ChunkResult) -> None:
        """Count one chunk of `rows` (int [R]). before: R rows; actions: float32 [R, C, A]; result: B rows."""
        self._num_chunk_steps += len(rows)
        self._num_paid += int(result.rewards[rows].any(axis=1).sum())
        self._num_outside += int(((actions < self._low) | (actions > self._high)).sum())
        self._num_actions += actions.size
        self._instructions |= set(before.instructions)
        goes_on = ~result.ended[rows]
        after = result.frames
        has_new_actions = np.array(
            [row in self._before and not np.array_equal(self._before[row], actions[i]) for i, row in enumerate(rows)],
            bool,
        )
        has_moved = (after.proprio[rows] != before.proprio).any(axis=-1)
        moves = goes_on & (has_moved | has_new_actions)
        self._before = {row: actions[i].copy() for i, row in enumerate(rows.tolist()) if goes_on[i]}
        self._num_moves += int(moves.sum())
        if moves.any() and before.images.shape[1]:
            seen, shown = before.images[moves, :, ::_LINES], after.images[rows[moves], :, ::_LINES]
            frozen = (seen == shown).all(axis=(2, 3, 4)).sum(axis=0)
            self._num_frozen = self._num_frozen + frozen if self._num_frozen.size else frozen

    def drain(self) -> EnvTally:
        """Return the tally since the last call."""
        tally = EnvTally(
            num_chunk_steps=self._num_chunk_steps,
            num_paid=self._num_paid,
            num_moves=self._num_moves,
            num_frozen=tuple(self._num_frozen.tolist()),
            outside=self._num_outside / max(1, self._num_actions),
            instructions=tuple(sorted(self._instructions)),
        )
        self._start()
        return tally
