"""The values that advantages need: they come with the actions, or are asked for when a rollout epoch is over."""

from __future__ import annotations

import numpy as np

from rlrun.data.messages import ActionChunk, ChunkResult, Frames
from rlrun.workers.trajectory_builder import TrajectoryBuilder


class ValueQuestions:
    """Of one rollout epoch, all rows of which act in every chunk step.

    A policy whose critic is a network of its own answers without values. One pass of that network over all rows of the
    epoch takes a fraction of what one for each chunk step would, so they are asked for with the epoch's last question.

    Example, at moment `t` (after the last chunk step `is_last`)::

        chunk = yield Observation(…, final_frames=questions.frames(perceived, is_last))
        questions.answered(t, chunk, is_last)
        …
        questions.followed(t, result, is_last)
    """

    def __init__(self, builder: TrajectoryBuilder, start: int):
        """start: the epoch's first chunk step."""
        self._builder, self._start = builder, start
        self._is_late = False
        self._goes_on: list[np.ndarray] = []  # bool [B] of each chunk step: what followed has a value of its own
        self._cut_off: list[tuple[int, np.ndarray, Frames]] = []  # chunk step, truncated rows and their last frames

    def frames(self, perceived: Frames, is_last: bool) -> Frames | None:
        """Rows whose values are wanted besides those of `perceived`, which act; None: no others."""
        cut_off = [frames for _, _, frames in self._cut_off]
        if not self._is_late:
            return Frames.joined(cut_off) if cut_off else None
        if not is_last:
            return None
        states = self._builder.states(self._start, self._start + len(self._goes_on))
        return Frames.joined([states, *(_without_images(frames) for frames in (perceived, *cut_off))])

    def answered(self, t: int, chunk: ActionChunk, is_last: bool) -> None:
        """What the policy said at moment `t`; to be told before chunk step `t` is added."""
        values = chunk.final_values
        self._is_late = chunk.values is None
        if self._is_late:
            if not is_last:
                return
            values = self._take_all(t, values)
        elif self._goes_on:
            self._builder.set_next_values(t - 1, slice(None), np.where(self._goes_on[-1], chunk.values, 0.0))
        if chunk.values is not None and not is_last:
            self._builder.set_values(t, chunk.values)
        for moment, rows, frames in self._cut_off:
            self._builder.set_next_values(moment, rows, values[: len(frames)])
            values = values[len(frames) :]
        self._cut_off.clear()

    def _take_all(self, end: int, values: np.ndarray) -> np.ndarray:
        """Those of the epoch's observations and of the one after it; returns the others."""
        goes_on, steps = np.stack(self._goes_on), slice(self._start, end)
        num = goes_on.size + goes_on.shape[1]
        by_moment = values[:num].reshape(-1, goes_on.shape[1])
        self._builder.set_values(steps, by_moment[:-1])
        self._builder.set_next_values(steps, slice(None), np.where(goes_on, by_moment[1:], 0.0))
        return values[num:]

    def followed(self, t: int, result: ChunkResult, is_last: bool) -> None:
        """What chunk step `t` did. is_last: of the epoch; the next question shows where each row stopped."""
        is_cut_off = result.truncated & ~result.infra_fault
        self._goes_on.append(~result.ended | is_cut_off if is_last else ~result.ended)
        cut_off = np.flatnonzero(is_cut_off)
        if cut_off.size and not is_last:
            self._cut_off.append((t, cut_off, result.frames.rows(cut_off)))


def _without_images(frames: Frames) -> Frames:
    return Frames(frames.images[:, :0], frames.proprio, frames.instructions)
