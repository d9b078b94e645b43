"""Collects the values that advantages need: of all observations, and of the last ones of truncated episodes."""

from __future__ import annotations

import numpy as np

from rlrun.data.messages import ActionChunk, ChunkResult, Frames
from rlrun.workers.trajectory_builder import TrajectoryBuilder


class ValueQuestions:
    """The value requests of one rollout epoch in which all rows act in every chunk step.

    Example, at moment `t` (after the last chunk step `is_last`)::

        chunk = yield Observation(…, final_frames=questions.frames())
        questions.answered(t, chunk, is_last)
        …
        questions.followed(result, is_last)
    """

    def __init__(self, builder: TrajectoryBuilder):
        self._builder = builder
        self._goes_on: np.ndarray | None = None  # bool [B]: rows whose next value is that of the next observation
        self._cut_off: tuple[np.ndarray, Frames] | None = None  # rows truncated by the last chunk step

    def frames(self) -> Frames | None:
        """Return the final frames whose values are needed in addition; None if there are none."""
        return None if self._cut_off is None else self._cut_off[1]

    def answered(self, t: int, chunk: ActionChunk, is_last: bool) -> None:
        """Store the policy's values at moment `t`. is_last: `t` is after the last chunk step of the epoch."""
        if self._goes_on is not None:
            self._builder.set_next_values(t - 1, slice(None), np.where(self._goes_on, chunk.values, 0.0))
        if self._cut_off is not None:
            assert chunk.final_values is not None  # the request had final frames
            self._builder.set_next_values(t - 1, self._cut_off[0], chunk.final_values)
        if not is_last:
            self._builder.set_values(t, chunk.values)

    def followed(self, result: ChunkResult, is_last: bool) -> None:
        """Take the result of a chunk step. is_last: it ends the epoch; the next request has every row's last frames."""
        is_cut_off = result.truncated & ~result.infra_fault
        self._goes_on = ~result.ended | is_cut_off if is_last else ~result.ended
        cut_off = np.flatnonzero(is_cut_off)
        self._cut_off = (cut_off, result.frames.rows(cut_off)) if cut_off.size and not is_last else None
