"""The edge from env to actor workers: trajectories, and their check at the receiver.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A controlled action dimensions, K = C*A action
tokens, N cameras, P proprioception, H x W pixels, F rows that ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.edges.wrong_message import wrong_message


@dataclass(frozen=True, eq=False)
class Trajectory:
    """env -> actor: T chunk steps of the B envs that one actor rank owns.

    Example: horizon 16, 16 envs, 2 ranks: each rank receives T=16, B=8.
    """

    images: np.ndarray  # uint8 [T, B, N, H, W, 3]
    proprio: np.ndarray  # float32 [T, B, P]
    instructions: tuple[str, ...]  # distinct sentences
    instruction_index: np.ndarray  # int16 [T, B], into `instructions`
    tokens: np.ndarray  # uint8 or float32 [T, B, K]
    logprobs: np.ndarray  # float32 [T, B, K]
    values: np.ndarray  # float32 [T, B]
    next_values: np.ndarray  # float32 [T, B]: value of the true next observation (the final one where truncated)
    rewards: np.ndarray  # float32 [T, B, C]
    step_valid: np.ndarray  # bool [T, B, C]
    terminated: np.ndarray  # bool [T, B]
    truncated: np.ndarray  # bool [T, B]
    valid: np.ndarray  # bool [T, B]; False: infra fault or no episode running; out of every loss and count
    group: np.ndarray  # int32 [B]; rows of one group share their reset seed
    policy_version: np.ndarray  # int32 [T, B]
    next_proprio: np.ndarray | None = None  # float32 [T, B, P], of the true next observation; None: not asked for

    @property
    def num_chunk_steps(self) -> int:
        return int(self.valid.sum())


def check_trajectories(parts: Sequence[Trajectory], senders: Sequence[str], num_steps: int, version: int) -> None:
    """Raise RunError, naming the env worker, for an invalid trajectory.

    parts: the shards of one actor rank. senders: the worker of each. num_steps: T. version: of the current policy.
    """
    for part, sender in zip(parts, senders, strict=True):
        for what, cause in _trajectory_faults(part, num_steps, version):
            raise wrong_message(sender, f"it sent a trajectory with {what}", cause)


def _trajectory_faults(part: Trajectory, num_steps: int, version: int) -> Iterable[tuple[str, str]]:
    """Yield each fault of a trajectory, and its cause."""
    shape = part.valid.shape
    if len(shape) != 2 or shape[0] != num_steps:
        yield f"flags of shape {shape}", f"({num_steps}, B) is needed"
        return
    for name in Trajectory.__dataclass_fields__:
        array = getattr(part, name)
        if name not in ("instructions", "group") and array is not None and array.shape[:2] != shape:
            yield f"{name} of shape {array.shape}", f"{shape} is needed"
            return
    for name in ("rewards", "logprobs", "values", "next_values", "proprio", "next_proprio", "tokens"):
        array = getattr(part, name)
        if array is None:
            continue
        is_wrong = ~np.isfinite(array).reshape(*shape, -1).all(-1) & part.valid
        if is_wrong.any():
            step, row = np.argwhere(is_wrong)[0].tolist()
            yield f"{name} that are NaN or infinite", f"first at chunk step {step} of row {row}"
    if (part.terminated & part.truncated & part.valid).any():
        yield "chunk steps that are both terminated and truncated", "an episode ends in one way"
    if not ((part.instruction_index >= 0) & (part.instruction_index < len(part.instructions)))[part.valid].all():
        yield "sentences that it does not contain", f"it has {len(part.instructions)}"
    if (part.policy_version[part.valid] > version).any():
        newest = int(part.policy_version[part.valid].max())
        yield f"actions of policy version {newest}", f"the newest that was ever sent is {version}"
