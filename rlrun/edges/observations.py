"""The edge from env to rollout workers: observations, and their check at the receiver.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A controlled action dimensions, K = C*A action
tokens, N cameras, P proprioception, H x W pixels, F rows that ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.edges.frames import Frames
from rlrun.edges.wrong_message import wrong_message


@dataclass(frozen=True, eq=False)
class Observation:
    """env -> rollout: rows to act on, and rows that only need a value.

    Example: Observation(env_worker=0, frames=…8 rows…, sampling_keys=arange(8), temperature=1.0,
    final_frames=None): act on 8 envs, no episode ended in the last chunk.
    """

    env_worker: int  # rank of the sender
    frames: Frames  # B rows to act on
    sampling_keys: np.ndarray  # uint64 [B]; the same key and logits give the same tokens, whatever the batch
    temperature: float  # of sampling; 0: arg-max tokens, the keys are then ignored
    final_frames: Frames | None  # F rows that only need a value, such as the last ones of truncated episodes
    rows: np.ndarray | None = None  # int [B], rows of the sender; set by evaluation only
    is_first: np.ndarray | None = None  # bool [B], an episode begins; set by evaluation only
    policy_version: int = 0  # the oldest accepted one; the rollout worker waits until it has this or a newer one
    # float32 [B, L, A], simulator units: under real-time chunking what the row would execute from now on, 0 in rows
    # whose episode begins; None: without it
    coming: np.ndarray | None = None


def check_observation(observation: Observation, num_proprio: int, config: RunConfig) -> None:
    """Raise RunError, naming the env worker, for an invalid observation, or another than the run's.

    num_proprio: P; 0: any.
    """
    sender = f"env/{observation.env_worker}"
    frames = observation.frames
    for part in (frames, observation.final_frames):
        if part is not None:
            _check_frames(sender, part, num_proprio, config.env.image_size)
    if observation.final_frames is not None and observation.final_frames.images.shape[1:] != frames.images.shape[1:]:
        shapes = f"{observation.final_frames.images.shape[1:]} and {frames.images.shape[1:]}"
        raise wrong_message(sender, "final frames have other pictures than the frames to act on", shapes)
    keys = observation.sampling_keys
    if keys.dtype != np.uint64 or keys.shape != (len(frames),):
        cause = f"uint64 ({len(frames)},) is needed"
        raise wrong_message(sender, f"it sent sampling keys that are {keys.dtype} {keys.shape}", cause)
    temperatures = config.rollout.temperature, config.evaluation.temperature
    if observation.temperature not in temperatures:
        cause = "training has {:g}, evaluation {:g}".format(*temperatures)
        raise wrong_message(sender, f"it sent a temperature of {observation.temperature}", cause)
    coming = observation.coming
    if coming is not None:
        if coming.ndim != 3 or len(coming) != len(frames) or not np.isfinite(coming).all():
            cause = f"finite ({len(frames)}, L, A) is needed"
            raise wrong_message(sender, f"it sent coming actions of shape {coming.shape}, or not finite", cause)
        if observation.is_first is None or observation.is_first.shape != (len(frames),):
            raise wrong_message(
                sender, "it sent coming actions without the rows that begin", f"{len(frames)} are needed"
            )


def _check_frames(sender: str, frames: Frames, num_proprio: int, size: int) -> None:
    images = frames.images
    proprio = frames.proprio
    rows = len(frames)
    is_fit = images.ndim == 5 and len(images) == rows and (not images.size or images.shape[2:] == (size, size, 3))
    if images.dtype != np.uint8 or not is_fit:
        cause = f"uint8 ({rows}, N, {size}, {size}, 3) is needed"
        raise wrong_message(sender, f"it sent pictures that are {images.dtype} {images.shape}", cause)
    if proprio.ndim != 2 or len(proprio) != rows or (num_proprio and proprio.shape[1] != num_proprio):
        cause = f"({rows}, {num_proprio or 'P'}) is needed"
        raise wrong_message(sender, f"it sent proprioception of shape {proprio.shape}", cause)
    if not np.isfinite(proprio).all():
        rows_at_fault = np.flatnonzero(~np.isfinite(proprio).all(1)).tolist()
        raise wrong_message(sender, "it sent proprioception that is NaN or infinite", f"rows {rows_at_fault} of {rows}")
