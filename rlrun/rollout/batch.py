"""The rows of one act call, in the order in which a backend takes them, and the answer back to their askers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.data.messages import ActionChunk, Frames, Observation


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to act on, followed by rows of which only the value counts.

    Example: two observations of 8 rows, one of which has 3 final frames: 19 rows, of which 16 act.
    """

    observations: tuple[Observation, ...]
    temperature: float  # 0: the most likely tokens
    num_acting: int

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Batch:
        """Raises ValueError where temperatures differ."""
        temperatures = {observation.temperature for observation in observations}
        if len(temperatures) > 1:
            raise ValueError(f"act() got observations of temperatures {sorted(temperatures)}; ask in separate calls")
        return cls(tuple(observations), temperatures.pop(), sum(len(asked.frames) for asked in observations))

    @property
    def _parts(self) -> list[Frames]:
        final = [asked.final_frames for asked in self.observations if asked.final_frames is not None]
        return [asked.frames for asked in self.observations] + final

    @property
    def images(self) -> np.ndarray:
        """uint8 [rows, N, H, W, 3]."""
        return np.concatenate([frames.images for frames in self._parts])

    @property
    def instructions(self) -> list[str]:
        return [instruction for frames in self._parts for instruction in frames.instructions]

    @property
    def proprio(self) -> np.ndarray:
        """float32 [rows, P]."""
        return np.concatenate([frames.proprio for frames in self._parts])

    @property
    def keys(self) -> np.ndarray:
        """uint64 [num_acting]."""
        return np.concatenate([observation.sampling_keys for observation in self.observations])

    def answers(
        self, actions: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray, values: np.ndarray, policy_version: int
    ) -> list[ActionChunk]:
        """One chunk per observation. `values` [rows] are of all rows, the others of those that act."""
        chunks, start, final_start = [], 0, self.num_acting
        for observation in self.observations:
            rows = slice(start, start + len(observation.frames))
            final_values = None
            if observation.final_frames is not None:
                final_values = values[final_start : final_start + len(observation.final_frames)]
                final_start += len(observation.final_frames)
            chunk = (actions[rows], tokens[rows], logprobs[rows], values[rows], final_values)
            chunks.append(ActionChunk(*chunk, policy_version))
            start = rows.stop
        return chunks
