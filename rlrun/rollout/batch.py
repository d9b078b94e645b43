"""The rows of one act call, in the order in which a backend takes them, and the answer back to their askers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlrun.data.messages import ActionChunk, Frames, Observation


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to act on, and rows of which only the value counts.

    Example: two observations of 8 rows, one of which has 3 final frames: 16 rows that act, and 3 others.
    """

    observations: tuple[Observation, ...]
    temperature: float  # 0: the most likely tokens

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Batch:
        """Raises ValueError where temperatures differ."""
        temperatures = {observation.temperature for observation in observations}
        if len(temperatures) > 1:
            raise ValueError(f"act() got observations of temperatures {sorted(temperatures)}; ask in separate calls")
        return cls(tuple(observations), temperatures.pop())

    @cached_property
    def acting(self) -> Frames:
        """The rows that act."""
        return Frames.joined([asked.frames for asked in self.observations])

    @cached_property
    def final(self) -> Frames | None:
        """The others, if there are any."""
        parts = [asked.final_frames for asked in self.observations if asked.final_frames is not None]
        return Frames.joined(parts) if parts else None

    @property
    def everyone(self) -> Frames:
        """Those that act, followed by the others."""
        return self.acting if self.final is None else Frames.joined([self.acting, self.final])

    @property
    def keys(self) -> np.ndarray:
        """uint64, of the rows that act."""
        return np.concatenate([observation.sampling_keys for observation in self.observations])

    def answers(
        self,
        actions: np.ndarray,
        tokens: np.ndarray,
        logprobs: np.ndarray,
        values: np.ndarray,
        final_values: np.ndarray,
        policy_version: int,
    ) -> list[ActionChunk]:
        """One chunk per observation; all but `final_values` are of the rows that act."""
        chunks, start, final_start = [], 0, 0
        for observation in self.observations:
            rows = slice(start, start + len(observation.frames))
            finals = None
            if observation.final_frames is not None:
                finals = final_values[final_start : final_start + len(observation.final_frames)]
                final_start += len(finals)
            chunks.append(
                ActionChunk(actions[rows], tokens[rows], logprobs[rows], values[rows], finals, policy_version)
            )
            start = rows.stop
        return chunks
