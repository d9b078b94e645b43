"""A learner of a tiny policy, synthetic trajectories, and values to compare; runs inside a rank."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from rlrun.actor.checkpoint_writing import CheckpointWriting, snapshot
from rlrun.actor.imitation import DemonstrationBatch
from rlrun.actor.learner import Learner
from rlrun.config.schema import RunConfig
from rlrun.edges.trajectories import Trajectory
from rlrun.system.telemetry import Telemetry
from tests.unit.actor.tiny_policy import TinyPolicy

T, B, C, A, P, SIDE = 4, 8, 2, 3, 5, 4
K = C * A


def tiny_config(**actor: object) -> RunConfig:
    """32 chunk steps in one optimizer step per epoch; eps keeps Adam from blowing up rounding differences."""
    config = RunConfig()
    config.policy.num_action_chunks = C
    config.algorithm.global_batch_size = T * B
    config.algorithm.target_kl = None
    config.actor.micro_batch_size = 8
    config.actor.eps = 1e-3
    config.sft.lr_warmup_steps = 0
    for name, value in actor.items():
        setattr(config.actor, name, value)
    return config


def tiny_policy(width: int = 16) -> TinyPolicy:
    torch.manual_seed(7)
    return TinyPolicy(A, K, SIDE * SIDE * 3, P, width)


def learner(config: RunConfig, width: int = 16) -> Learner:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    telemetry = Telemetry(f"actor/{rank}")
    return Learner(config, tiny_policy(width), rank, world_size, "cpu", telemetry)


def save_checkpoint(learner: Learner, folder: Path, driver_state: dict) -> None:
    CheckpointWriting(snapshot(learner, driver_state), folder, learner.ranks).complete()


def trajectory(seed: int = 0) -> Trajectory:
    """All B rows: two steps of an ended chunk are invalid, a few episodes end, one row is void."""
    draw = np.random.default_rng(seed)
    terminated = draw.random((T, B)) < 0.2
    truncated = (draw.random((T, B)) < 0.2) & ~terminated
    step_valid = np.ones((T, B, C), bool)
    step_valid[terminated, 1] = False
    valid = np.ones((T, B), bool)
    valid[:, 5] = False
    normal = lambda *shape: draw.standard_normal(shape).astype(np.float32)  # noqa: E731
    return Trajectory(
        images=draw.integers(0, 256, (T, B, 1, SIDE, SIDE, 3), dtype=np.uint8),
        proprio=normal(T, B, P),
        instructions=("push", "pull it"),
        instruction_index=draw.integers(0, 2, (T, B)).astype(np.int16),
        tokens=draw.integers(0, 256, (T, B, K)).astype(np.uint8),
        logprobs=-np.log(256).astype(np.float32) + 0.1 * normal(T, B, K),
        values=normal(T, B),
        next_values=normal(T, B),
        rewards=normal(T, B, C),
        step_valid=step_valid,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        group=(np.arange(B) // 4).astype(np.int32),
        policy_version=np.zeros((T, B), np.int32),
    )


def share(whole: Trajectory) -> Trajectory:
    """The rows of this rank."""
    size = B // dist.get_world_size()
    rows = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)
    by_row = {
        field.name: getattr(whole, field.name)[rows] if field.name == "group" else getattr(whole, field.name)[:, rows]
        for field in dataclasses.fields(Trajectory)
        if field.name != "instructions" and getattr(whole, field.name) is not None
    }
    return Trajectory(instructions=whole.instructions, **by_row)


def demonstrations(num_rows: int = 8) -> DemonstrationBatch:
    """Return this rank's share of a batch whose first action gives the brightness of the image."""
    draw = np.random.default_rng(3)
    images = draw.integers(0, 256, (num_rows, 1, SIDE, SIDE, 3), dtype=np.uint8)
    actions = np.zeros((num_rows, C, A), np.float32)
    actions[:, :, 0] = images.mean((1, 2, 3, 4))[:, None] / 255
    size = num_rows // dist.get_world_size()
    rows = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)
    proprio = draw.standard_normal((num_rows, P)).astype(np.float32)
    return DemonstrationBatch(images[rows], proprio[rows], ("push",) * size, actions[rows])


def weights(of: Learner) -> dict[str, np.ndarray]:
    """Return every whole parameter as this rank sees it."""
    return {name: t.float().cpu().numpy().copy() for name, t in of.sharded.full_tensors(of.sharded.shards().items())}


def exact(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics that do not depend on how weights are sharded: weight_change samples every shard."""
    return {name: number for name, number in metrics.items() if name != "weight_change"}
