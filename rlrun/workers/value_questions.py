"""The values that advantages need: of the observations that are acted on, and of the last ones of cut-off episodes."""

from __future__ import annotations

import numpy as np

from rlrun.data.messages import ActionChunk, ChunkResult, Frames
from rlrun.workers.trajectory_builder import TrajectoryBuilder


class ValueQuestions:
    """Of one rollout epoch, all rows of which act in every chunk step.

    Example, at moment `t` (after the last chunk step `is_last`)::

        chunk = yield Observation(…, final_frames=questions.frames())
        questions.answered(t, chunk, is_last)
        …
        questions.followed(result, is_last)
    """

    def __init__(self, builder: TrajectoryBuilder):
        self._builder = builder
        self._goes_on: np.ndarray | None = None  # bool [B]: what followed the last chunk step has a value of its own
        self._cut_off: tuple[np.ndarray, Frames] | None = None  # rows truncated by the last chunk step

    def frames(self) -> Frames | None:
        """Rows whose values are wanted besides those of the rows that act; None: no others."""
        return None if self._cut_off is None else self._cut_off[1]

    def answered(self, t: int, chunk: ActionChunk, is_last: bool) -> None:
        """What the policy said at moment `t`. is_last: behind the last chunk step of the epoch."""
        if self._goes_on is not None:
            self._builder.set_next_values(t - 1, slice(None), np.where(self._goes_on, chunk.values, 0.0))
        if self._cut_off is not None:
            assert chunk.final_values is not None  # they were asked for
            self._builder.set_next_values(t - 1, self._cut_off[0], chunk.final_values)
        if not is_last:
            self._builder.set_values(t, chunk.values)

    def followed(self, result: ChunkResult, is_last: bool) -> None:
        """What a chunk step did. is_last: of the epoch; the next question shows where each row stopped."""
        is_cut_off = result.truncated & ~result.infra_fault
        self._goes_on = ~result.ended | is_cut_off if is_last else ~result.ended
        cut_off = np.flatnonzero(is_cut_off)
        self._cut_off = (cut_off, result.frames.rows(cut_off)) if cut_off.size and not is_last else None
