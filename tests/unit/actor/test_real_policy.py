"""The real model, small, through the learner: export, checkpoint folder, every strategy's first forward."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.config.schema import Precision, RunConfig, ShardingStrategy
from rlrun.data.checkpoint_folder import folder_of_step
from rlrun.policies.openvla_oft.policy import VlaPolicy, new_policy
from rlrun.policies.openvla_oft.spec import OpenVLAOFTSettings
from rlrun.policies.spec import DemonstratedTask
from rlrun.system.telemetry import Telemetry
from tests.numerics import assert_moved_alike, norm_error
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import A, B, P, T, exact, save_checkpoint, share, tiny_config, trajectory
from tests.unit.policies.small import opened_vla

SIDE = 32


def small_config(**actor: object) -> RunConfig:
    config = tiny_config(**actor)
    config.env.image_size = SIDE
    own = OpenVLAOFTSettings(vision_hidden_size=16, llm_hidden_size=16, llm_intermediate_size=32)
    own.vision_num_heads = own.llm_num_heads = 2
    config.policy.sections = {"openvla_oft": own}
    return config


def small_learner(config: RunConfig) -> Learner:
    stats = [
        {"q01": [-1.0] * n, "q99": [1.0] * n, "min": [-1.0] * n, "max": [1.0] * n, "mask": [True] * n} for n in (A, P)
    ]
    task = DemonstratedTask(A, P, {"action": stats[0], "proprio": stats[1]}, ("push", "pull it"), ("zed_link",))
    model, processor = new_policy(config.policy, config.env, task, seed=3)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    policy = VlaPolicy(model, processor)
    return Learner(config, policy, rank, world_size, "cpu", Telemetry(f"actor/{rank}"))


def my_share(seed: int):
    images = np.random.default_rng(seed).integers(0, 256, (T, B, 1, SIDE, SIDE, 3), dtype=np.uint8)
    return share(dataclasses.replace(trajectory(seed), images=images))


def trained(config: RunConfig) -> tuple[list[dict[str, np.ndarray]], int, dict[str, float]]:
    """(weights before and after an update, checksum, metrics)."""
    actor = small_learner(config)
    before = sent_by(actor)
    metrics = update(actor, my_share(0))
    return [before, sent_by(actor)], checksum_of(actor), metrics


def sent_by(actor: Learner) -> dict[str, np.ndarray]:
    return {name: t.float().numpy().copy() for name, t in actor.named_weights()}


@pytest.mark.order_of_sums
@pytest.mark.parametrize("sharding", list(ShardingStrategy))
def test_the_model_trains_alike_under_every_strategy(
    one_rank: RankPool, two_ranks: RankPool, sharding: ShardingStrategy
) -> None:
    alone = one_rank.run(trained, small_config())[0]
    first, second = two_ranks.run(trained, small_config(sharding=sharding, activation_checkpointing=True))
    assert first[1] == second[1]
    assert_moved_alike(alone[0][0], first[0][1], alone[0][1], rtol=1e-2)
    assert exact(first[2]) == pytest.approx(exact(alone[2]), rel=1e-2, abs=1e-4)


def exported(folder: Path) -> tuple[bool, bool, float]:
    """After an update: does the folder in the checkpoint hold the same policy, and compute the same?"""
    actor = small_learner(small_config())
    update(actor, my_share(0))
    save_checkpoint(actor, folder, {"step": 1})
    model, processor = opened_vla(folder / "policy", torch.float32, "cpu")
    whole = dict(actor.sharded.full_tensors(actor.sharded.shards().items()))
    is_equal = all(torch.equal(tensor, whole[name]) for name, tensor in model.state_dict().items())
    mine = my_share(1)
    with torch.no_grad():
        distribution, values = actor.forward(mine.images[0], ["push"] * len(mine.group), mine.proprio[0])
        inputs = processor(mine.images[0], ["push"] * len(mine.group), mine.proprio[0])
        output = model(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
    gap = max(norm_error(distribution.logits, output.action_logits), norm_error(values, output.value))
    return is_equal, set(whole) == set(model.state_dict()), gap


def test_a_checkpoint_holds_a_policy_folder_that_computes_the_same(two_ranks: RankPool, tmp_path: Path) -> None:
    folder = folder_of_step(tmp_path, 1)
    for is_equal, has_all_names, gap in two_ranks.run(exported, folder):
        assert is_equal
        assert has_all_names
        assert gap < 1e-5
    described = json.loads((folder / "policy" / "config.json").read_text())
    assert described["architectures"] == ["OpenVLAForActionPrediction"]


def sent() -> tuple[set[str], set[str], set[str]]:
    config = small_config()
    config.rollout.precision = Precision.bf16
    actor = small_learner(config)
    names = [name for name, _ in actor.weight_layout()]
    weights = dict(actor.named_weights())
    assert list(weights) == names
    return set(weights), {str(t.dtype) for t in weights.values()}, set(actor.sharded.shards()) - set(weights)


def test_weights_are_sent_in_the_rollouts_precision_without_the_dead_ones(two_ranks: RankPool) -> None:
    names, dtypes, left_out = two_ranks.run(sent)[0]
    assert dtypes == {"torch.bfloat16"}
    assert any(name.startswith("value_head.") for name in names)
    assert left_out and all("blocks." in name or ".norm." in name for name in left_out)


def in_turns(is_offloaded: bool) -> tuple[dict, list[dict], int]:
    """Two updates, with the weights taken in between; offloaded: away from the device between the two."""
    config = small_config()
    config.algorithm.kl_coef = 0.1  # a reference moves along
    actor = small_learner(config)
    metrics, sent = [], {}
    for step in range(2):
        if is_offloaded:
            actor.onload()
        metrics.append(update(actor, my_share(step)))
        if is_offloaded:
            moved = actor.offload()
            parts = [t.to_local() for t in actor.sharded.module.parameters()]
            assert all(part.untyped_storage().nbytes() == 0 for part in parts)
            trained = sum(
                t.numel() for t, p in zip(parts, actor.sharded.module.parameters(), strict=True) if p.requires_grad
            )
            assert moved.num_bytes >= 4 * (sum(t.numel() for t in parts) + 3 * trained)  # moments, reference
            with pytest.raises(RuntimeError, match="offloaded"):
                update(actor, my_share(step))
            with pytest.raises(RuntimeError, match="offloaded"):
                next(actor.named_weights())
            actor.onload()
        sent = {name: t.numpy().copy() for name, t in actor.named_weights()}
    return sent, metrics, checksum_of(actor)


def test_a_learner_that_is_offloaded_learns_the_same_bit_for_bit(two_ranks: RankPool) -> None:
    for plain, offloaded in zip(two_ranks.run(in_turns, False), two_ranks.run(in_turns, True), strict=True):
        assert plain[1:] == offloaded[1:]
        assert plain[0].keys() == offloaded[0].keys()
        assert all(np.array_equal(values, offloaded[0][name]) for name, values in plain[0].items())


def trained_in_bf16(sharding: ShardingStrategy) -> tuple[float, int]:
    config = small_config(sharding=sharding, param_precision=Precision.bf16, optimizer_precision=Precision.bf16)
    actor = small_learner(config)
    return update(actor, my_share(0))["num_nonfinite"], checksum_of(actor)


@pytest.mark.parametrize("sharding", [ShardingStrategy.full_shard, ShardingStrategy.no_shard])
def test_everything_in_bf16(two_ranks: RankPool, sharding: ShardingStrategy) -> None:
    """The least memory without adapters: master weights and moments in bf16, with FSDP and without it."""
    first, second = two_ranks.run(trained_in_bf16, sharding)
    assert first == second and first[0] == 0
