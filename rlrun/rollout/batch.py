"""The rows of one act call in the order of the forward pass, and its results divided by observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlrun.data.messages import ActionChunk, Frames, Observation


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """Rows that need actions, followed by final frames, which only need values.

    Example: two observations of 8 rows, one of them with 3 final frames, give 16 acting rows and 3 final rows.
    """

    observations: tuple[Observation, ...]
    temperature: float  # 0: the most likely tokens

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> ForwardBatch:
        """Make the batch of observations. Raises ValueError if their temperatures differ."""
        temperatures = {observation.temperature for observation in observations}
        if len(temperatures) > 1:
            raise ValueError(f"act() got observations of temperatures {sorted(temperatures)}; use separate calls")
        return cls(tuple(observations), temperatures.pop())

    @cached_property
    def acting(self) -> Frames:
        """The rows that need actions."""
        return Frames.joined([observation.frames for observation in self.observations])

    @cached_property
    def final(self) -> Frames | None:
        """The rows that only need values, or None."""
        parts = [observation.final_frames for observation in self.observations if observation.final_frames is not None]
        return Frames.joined(parts) if parts else None

    @property
    def all_rows(self) -> Frames:
        """Acting rows, followed by final rows."""
        return self.acting if self.final is None else Frames.joined([self.acting, self.final])

    @property
    def keys(self) -> np.ndarray:
        """Sampling keys of the acting rows, uint64 [rows]."""
        return np.concatenate([observation.sampling_keys for observation in self.observations])

    def chunks(
        self,
        actions: np.ndarray,
        tokens: np.ndarray,
        logprobs: np.ndarray,
        values: np.ndarray,
        final_values: np.ndarray,
        policy_version: int,
    ) -> list[ActionChunk]:
        """Return one chunk per observation. `final_values` belong to final rows, all other arrays to acting rows."""
        chunks, start, final_start = [], 0, 0
        for observation in self.observations:
            rows = slice(start, start + len(observation.frames))
            finals = None
            if observation.final_frames is not None:
                finals = final_values[final_start : final_start + len(observation.final_frames)]
                final_start += len(finals)
            of_rows = actions[rows], tokens[rows], logprobs[rows], values[rows]
            chunks.append(ActionChunk.answer(observation, *of_rows, finals, policy_version))
            start = rows.stop
        return chunks
