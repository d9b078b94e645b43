"""What a simulator shows and answers: frames, and the result of a chunk. Arrays are numpy; pixels are uint8.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A controlled action dimensions, K = C*A action
tokens, N cameras, P proprioception, H x W pixels, F rows that ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Frames:
    """simulator -> env worker: images, proprioception and instructions, one row per env.

    Example: 8 envs, one 64 px camera: images (8, 1, 64, 64, 3), proprio (8, 61).
    """

    images: np.ndarray  # uint8 [B, N, H, W, 3], RGB
    proprio: np.ndarray  # float32 [B, P], SI units
    instructions: tuple[str, ...]  # B task sentences

    def __len__(self) -> int:
        return len(self.instructions)

    def rows(self, index: np.ndarray) -> Frames:
        """Return the rows that `index` (integers or a mask of B) selects."""
        chosen = np.arange(len(self))[index]
        texts = tuple(map(self.instructions.__getitem__, chosen.tolist()))
        return Frames(self.images[chosen], self.proprio[chosen], texts)

    @classmethod
    def concatenate(cls, parts: Sequence[Frames]) -> Frames:
        """Return all rows of `parts` (at least one part), in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.proprio for part in parts]),
            tuple([text for part in parts for text in part.instructions]),
        )

    def select_cameras(self, cameras: Sequence[int]) -> Frames:
        """Return the frames with the images of these cameras only, in this order."""
        return Frames(self.images[:, list(cameras)], self.proprio, self.instructions)

    def replaced(self, index: np.ndarray, fresh: Frames) -> Frames:
        """Return a copy in which rows `index` (int [R]) are the R rows of `fresh`."""
        images = self.images.copy()
        proprio = self.proprio.copy()
        instructions = list(self.instructions)
        images[index] = fresh.images
        proprio[index] = fresh.proprio
        for row, instruction in zip(index, fresh.instructions, strict=True):
            instructions[row] = instruction
        return Frames(images, proprio, tuple(instructions))


@dataclass(frozen=True, eq=False)
class ChunkResult:
    """simulator -> env worker: result of a chunk of C control steps.

    Steps after the end of an episode are not executed: step_valid is False and the reward 0 there.
    `frames` is the state at the end of the chunk; for a row that ended, the final observation.
    """

    frames: Frames  # B rows
    rewards: np.ndarray  # float32 [B, C]
    step_valid: np.ndarray  # bool [B, C]; a row that was not active is all False
    terminated: np.ndarray  # bool [B]; the task ended (success or failure condition)
    truncated: np.ndarray  # bool [B]; the time limit cut it off; never together with terminated
    success: np.ndarray  # bool [B]; goal satisfied at the end of the chunk
    q_score: np.ndarray  # float32 [B]; fraction of ground goal literals satisfied, 0..1
    infra_fault: np.ndarray  # bool [B]; the simulator broke: the episode is void, not a failure
    infos: tuple[dict, ...]  # B dicts of the OmniGibson contract (reward, done, episode_length)

    @property
    def ended(self) -> np.ndarray:
        """bool [B]: rows whose episode is over, for any reason."""
        return self.terminated | self.truncated | self.infra_fault

    def fault(self, row: int) -> str:
        """Return why the episode of `row` is void, as far as the simulator says it."""
        return str(self.infos[row].get("fault", "it broke"))

    @classmethod
    def broken(cls, frames: Frames, num_steps: int, active: np.ndarray, fault: str = "") -> ChunkResult:
        """Return a result whose active rows (bool [B]) are void; `frames` only gives the shapes. fault: "": unknown."""
        num_rows = len(frames)
        nothing = np.zeros(num_rows, bool)
        return cls(
            frames=frames,
            rewards=np.zeros((num_rows, num_steps), np.float32),
            step_valid=np.zeros((num_rows, num_steps), bool),
            terminated=nothing,
            truncated=nothing,
            success=nothing,
            q_score=np.zeros(num_rows, np.float32),
            infra_fault=active,
            infos=tuple({"fault": fault} if fault and is_active else {} for is_active in active.tolist()),
        )
