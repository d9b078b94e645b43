"""The interface of every simulator: B envs that take action chunks, without auto-reset.

Terms are Gymnasium's. The env worker, not the simulator, decides when a row is reset, so the
last frames of an ended row are simply `ChunkResult.frames`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.spaces import Spaces


class SimulatorFault(RuntimeError):
    """The simulator itself broke (crash, lost link, stuck): all rows are void; it must be restarted."""


class NoPicture(RuntimeError):
    """The simulator cannot draw an overview for people; everything else goes on."""


class VectorEnv(ABC):
    """B independent episodes of one activity.

    Determinism: the same seed, actions and simulator version give identical frames and rewards,
    whichever row runs them and whatever the other rows do. Returned arrays belong to the caller and are never reused.
    """

    num_envs: int  # B
    spaces: Spaces  # of observations and actions
    largest_reward: float | None = None  # absolute value in one control step; None: unknown
    fingerprint: Mapping[str, str] = {}  # versions, renderer and assets, on which its observations depend

    @abstractmethod
    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        """Start new episodes in rows `env_ids` (int [R]) with `seeds` (int [R]); returns R rows of frames."""

    @abstractmethod
    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        """Run C control steps.

        actions: float32 [B, C, A] in simulator units; out-of-range values are clipped.
        active: bool [B], rows to step (None: all). A row stepped after its end without a reset raises
        RuntimeError. Frames are rendered once, at the end of the chunk; an inactive row's frames are zero.
        Raises SimulatorFault when the whole simulator broke; one bad row is only its `infra_fault`.
        """

    def checked(self, actions: np.ndarray, active: np.ndarray, is_over: np.ndarray) -> np.ndarray:
        """Return actions clipped to their limits; refuse wrong shapes, numbers that are not finite, and ended rows.

        actions: float [B, C, A]; active, is_over: bool [B]. Raises ValueError and RuntimeError.
        """
        expected = (self.num_envs, self.spaces.num_actions)
        if actions.ndim != 3 or actions.shape[::2] != expected:
            raise ValueError(f"actions are {actions.shape}, expected ({expected[0]}, C, {expected[1]})")
        if not np.isfinite(actions[active]).all():
            raise ValueError("actions of active rows hold NaN or infinity: the policy is broken, not the simulator")
        over = np.flatnonzero(active & is_over).tolist()
        if over:
            raise RuntimeError(
                f"rows {over} have ended or were never reset: reset() them, or leave them out of `active`"
            )
        return np.clip(actions, *self.spaces.limits)

    @abstractmethod
    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        """Return uint8 [height, width, 3]: an overview for people, as at the last step of row `env_id`."""

    @abstractmethod
    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        """Return float32 [R, A]: the next control step of the scripted expert in each row.

        Raises NotImplementedError with a remedy if the simulator has no expert (demonstrations
        must then be given).
        """

    def info(self, env_id: int) -> Mapping[str, Any]:
        """Return what the simulator says of row `env_id` after its last control step, for an own reward; {}: nothing.

        It never leaves the simulator's process, so that it may hold anything.
        """
        return {}

    @abstractmethod
    def close(self) -> None:
        """Free the renderer and the simulator; further calls raise."""


class ChunkBuilder:
    """The results of C control steps in B rows, filled step by step; rows that are not stepped keep zeros."""

    def __init__(self, num_rows: int, num_steps: int):
        self.rewards = np.zeros((num_rows, num_steps), np.float32)
        self.step_valid = np.zeros((num_rows, num_steps), bool)
        self.terminated, self.truncated, self.success, self.infra_fault = np.zeros((4, num_rows), bool)
        self.q_score = np.zeros(num_rows, np.float32)
        self.infos: list[dict[str, Any]] = [{} for _ in range(num_rows)]

    def add(self, row: int, k: int, reward: float, terminated: bool, truncated: bool, success: bool) -> None:
        """Add control step `k` of a row."""
        self.rewards[row, k] = reward
        self.step_valid[row, k] = True
        self.terminated[row] = terminated
        self.truncated[row] = truncated
        self.success[row] = success
        self.q_score[row] = success

    def fail(self, row: int, why: str) -> None:
        """Mark the episode of a row as void."""
        self.rewards[row] = 0.0
        self.step_valid[row] = False
        self.q_score[row] = 0.0
        self.infos[row] = {"fault": why}
        self.terminated[row] = self.truncated[row] = self.success[row] = False
        self.infra_fault[row] = True

    def result(self, frames: Frames) -> ChunkResult:
        """Return the chunk, with the frames after it."""
        flags = (self.terminated, self.truncated, self.success)
        return ChunkResult(
            frames, self.rewards, self.step_valid, *flags, self.q_score, self.infra_fault, tuple(self.infos)
        )
