"""Detects implausible simulator results: wrong shapes, numbers not finite or absurd, blind cameras, noise."""

from __future__ import annotations

import numpy as np

from rlrun.data.messages import ChunkResult, Frames
from rlrun.envs.vector_env import SimulatorFault

# Mean difference of neighbouring pixels, 0..255. Random bytes have 85, frames of the embedded world 2 to 4.
_ROUGHEST = 48.0
_LINES = 4  # one of so many lines is checked
_MANY_TIMES = 10.0  # tolerance: a simulator's declared largest reward describes usual events


def check_frames(frames: Frames, rows: np.ndarray, num_rows: int, num_proprio: int) -> None:
    """Raise SimulatorFault if `frames` (of `num_rows` rows) cannot be a robot's observation in `rows` (int [R])."""
    images, proprio = frames.images, frames.proprio
    if images.dtype != np.uint8 or images.ndim != 5 or len(images) != num_rows or images.shape[-1] != 3:
        raise SimulatorFault(f"images are {images.dtype} {images.shape}, expected uint8 ({num_rows}, N, H, W, 3)")
    if proprio.shape != (num_rows, num_proprio):
        raise SimulatorFault(f"proprioception is {proprio.shape}, expected ({num_rows}, {num_proprio})")
    if not np.isfinite(proprio[rows]).all():
        raise SimulatorFault("proprioception holds NaN or infinity")
    if images.size and rows.size:
        _check_pixels(images, rows)


def _check_pixels(images: np.ndarray, rows: np.ndarray) -> None:
    """Raise SimulatorFault for invalid pixels. images: uint8 [B, N, H, W, 3], with at least one camera and one row."""
    pixels = images[rows].reshape(len(rows), -1)
    if (blind := rows[pixels.min(axis=1) == pixels.max(axis=1)]).size:
        raise SimulatorFault(f"all pixels of all cameras are the same in rows {blind.tolist()}: nothing was rendered")
    across = np.diff(images[rows, :, ::_LINES].astype(np.int16), axis=-2)
    if across.size and (noisy := rows[np.abs(across).mean(axis=(2, 3, 4)).max(axis=1) > _ROUGHEST]).size:
        raise SimulatorFault(f"pixels are unlike their neighbours in rows {noisy.tolist()}: noise, not an image")


def reward_limit(declared: float | None, configured: float | None) -> float:
    """Return the largest absolute reward of a control step that is plausible.

    declared: by the simulator, see `VectorEnv.largest_reward`. configured: `env.max_abs_reward`. None: no such limit.
    """
    limits = [_MANY_TIMES * declared] if declared is not None else []
    return min([*limits, *([configured] if configured is not None else [])], default=float("inf"))


def check_result(
    result: ChunkResult, active: np.ndarray, num_steps: int, num_proprio: int, largest_reward: float
) -> None:
    """Check a chunk in the rows of `active` (bool [B]); rows with an infra fault may contain anything.

    largest_reward: see `reward_limit`.
    """
    num_rows = len(active)
    for name in ("rewards", "step_valid"):
        if (shape := getattr(result, name).shape) != (num_rows, num_steps):
            raise SimulatorFault(f"{name} are {shape}, expected ({num_rows}, {num_steps})")
    rows = np.flatnonzero(active & ~result.infra_fault)
    if not np.isfinite(result.rewards[rows]).all():
        raise SimulatorFault("rewards hold NaN or infinity")
    _check_size(result.rewards, rows, largest_reward)
    check_frames(result.frames, rows, num_rows, num_proprio)


def _check_size(rewards: np.ndarray, rows: np.ndarray, largest: float) -> None:
    """Raise SimulatorFault for too large rewards; rewards: float [B, C], finite in `rows`."""
    sizes = np.abs(rewards[rows])
    if sizes.size and sizes.max() > largest:
        row, step = np.unravel_index(sizes.argmax(), sizes.shape)
        raise SimulatorFault(
            f"a reward of {rewards[rows[row], step]:.3g} in row {rows[row]}: more than {largest:g}, the most that this "
            "world can mean (env.max_abs_reward)"
        )
