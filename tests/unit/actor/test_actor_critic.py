"""A Gaussian policy through the learner: ratio 1 at first, statistics after the update, checkpoints and weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from rlrun.actor import checkpoint
from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.config.schema import RunConfig
from rlrun.edges.buckets import lay_out, pack
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.spaces import Spaces
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.actor_critic.policy import ActorCriticPolicy
from rlrun.policies.actor_critic.spec import MlpSettings
from rlrun.rollout.hf import HFBackend
from rlrun.system.telemetry import Telemetry
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import A, B, P, T, save_checkpoint, share, tiny_config, trajectory

SPACES = Spaces(A, None, (-1.0,) * A, (1.0,) * A, num_proprio=P, num_images=0)


def gaussian_config() -> RunConfig:
    config = tiny_config()
    config.policy.kind, config.policy.value_hidden_sizes = "mlp", [16]
    config.policy.sections = {"mlp": MlpSettings(hidden_sizes=[16], normalize_observations=True)}
    return config


def new_policy(config: RunConfig) -> ActorCriticPolicy:
    return ActorCriticPolicy.new(config.policy, 0, SPACES, seed=3)


def gaussian_learner(config: RunConfig) -> Learner:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return Learner(config, new_policy(config), rank, world_size, "cpu", Telemetry(f"actor/{rank}"))


def acted(backend: HFBackend, seed: int) -> Trajectory:
    """Return all rows of a synthetic trajectory with actions chosen by `backend`."""
    whole = trajectory(seed)
    frames = Frames(np.zeros((T * B, 0, 4, 4, 3), np.uint8), whole.proprio.reshape(T * B, P) * 3 + 5, ("",) * T * B)
    keys = np.arange(seed * 1000, seed * 1000 + T * B).astype(np.uint64)
    (chunk,) = backend.act([Observation(0, frames, keys, 1.0, frames)])
    return dataclasses.replace(
        whole,
        images=frames.images.reshape(T, B, 0, 4, 4, 3),
        proprio=frames.proprio.reshape(T, B, P),
        tokens=chunk.tokens.reshape(T, B, -1),
        logprobs=chunk.logprobs.reshape(T, B, -1),
        values=chunk.final_values.reshape(T, B),
    )


def publish(learner: Learner, backend: HFBackend, version: int) -> None:
    weights = list(learner.named_weights())
    for bucket in pack(weights, lay_out(weights, 1 << 12), version):
        backend.apply(bucket)


def two_steps(folder: Path) -> tuple[list[dict[str, float]], list[float], int, int]:
    """Act, learn, publish, twice; save after the first step and repeat the second in a restored learner."""
    config = gaussian_config()
    learner, backend = gaussian_learner(config), HFBackend(new_policy(config))
    publish(learner, backend, 0)
    metrics = [update(learner, share(acted(backend, 1)))]
    save_checkpoint(learner, folder, {"step": 1})
    publish(learner, backend, 1)
    second = share(acted(backend, 2))
    metrics.append(update(learner, second))
    restored = gaussian_learner(config)
    checkpoint.restore(restored, folder)
    update(restored, second)
    seen = learner.policy.module.statistics
    return metrics, seen.mean.tolist(), checksum_of(learner), checksum_of(restored)


def test_statistics_travel_with_the_weights(two_ranks: RankPool, tmp_path: Path) -> None:
    outcomes = two_ranks.run(two_steps, tmp_path / "step-1")
    for metrics, mean, checksum, restored in outcomes:
        assert all(m["rollout_logprob_gap"] < 1e-5 for m in metrics), "an update sees what the rollout saw"
        assert metrics[1]["ratio"] != 1.0 and metrics[1]["num_nonfinite"] == 0
        assert max(abs(x - 5) for x in mean) < 1.5 and checksum == restored
        assert (mean, checksum) == (outcomes[0][1], outcomes[0][2])
    assert torch.tensor(outcomes[0][1]).std() > 0
