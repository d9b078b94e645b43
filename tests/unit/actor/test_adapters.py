"""LoRA: two ranks equal one, few parameters train, rollout workers get merged weights of changed tensors only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlrun.actor import checkpoint
from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.config.schema import Precision, RunConfig, ShardingStrategy
from rlrun.data.checkpoint_folder import folder_of_step
from rlrun.edges.buckets import BucketLayout, lay_out, pack
from rlrun.policies.opening import open_policy, open_to_shard
from rlrun.policies.policy import torch_dtype
from rlrun.rollout.adapted import adapted_weights
from rlrun.rollout.backend import unsent_names
from rlrun.rollout.hf import HFBackend
from rlrun.system.telemetry import Telemetry
from tests.numerics import assert_moved_alike, norm_error
from tests.unit.actor.official_folder import official_run, write_official
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import B, T, save_checkpoint, share, trajectory

SIDE = 28
ROUNDING = 1e-5  # of a float32 forward pass, relative
ADAPTED = "language_model.model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official")
    write_official(folder, width=32, num_layers=3)
    return folder


def adapted_run(**actor: object) -> RunConfig:
    run = official_run(**actor)
    run.actor.lora.rank = 4
    run.actor.lr = 1e-2
    return run


def adapted(folder: Path, run: RunConfig) -> Learner:
    policy, weights = open_to_shard(folder, run)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return Learner(run, policy, rank, world_size, "cpu", Telemetry(f"actor/{rank}"), weights=weights)


def my_share(seed: int):
    images = np.random.default_rng(seed).integers(0, 256, (T, B, 1, SIDE, SIDE, 3), dtype=np.uint8)
    return share(dataclasses.replace(trajectory(seed), images=images))


def sent(learner: Learner) -> dict[str, np.ndarray]:
    return {name: tensor.float().numpy().copy() for name, tensor in learner.named_weights()}


def trained(folder: Path, run: RunConfig) -> tuple[dict, dict, set[str], int]:
    """Return (what is sent, merged, before and after two updates, trained names, checksum)."""
    learner = adapted(folder, as_in_turns(run))
    before = sent(learner)
    for seed in range(2):
        update(learner, my_share(seed))
    trains = {name for name, p in learner.sharded.module.named_parameters() if p.requires_grad}
    return before, sent(learner), trains, checksum_of(learner)


@pytest.mark.order_of_sums
@pytest.mark.parametrize(
    ("sharding", "replicates"),
    [
        (ShardingStrategy.full_shard, None),
        pytest.param(ShardingStrategy.full_shard, True, marks=pytest.mark.long),
        pytest.param(ShardingStrategy.shard_grad_op, None, marks=pytest.mark.long),
        pytest.param(ShardingStrategy.hybrid_shard, True, marks=pytest.mark.long),
        pytest.param(ShardingStrategy.no_shard, None, marks=pytest.mark.long),
    ],
)
def test_two_ranks_equal_one_rank(
    one_rank: RankPool, two_ranks: RankPool, folder: Path, sharding: ShardingStrategy, replicates: bool | None
) -> None:
    before, alone, trains, _ = one_rank.run(trained, folder, adapted_run())[0]
    run = adapted_run(sharding=sharding, replicate_frozen=replicates)
    (_, first, _, checksum), (_, _, _, other) = two_ranks.run(trained, folder, run)
    assert checksum == other
    assert_moved_alike(before, first, alone)
    assert all(np.abs(after - before[name]).max() > 1e-6 for name, after in alone.items())  # whatever is sent moves
    assert all(".lora_" in name or name.startswith(("value_head", "proj", "proprio")) for name in trains)
    assert ADAPTED in alone and "language_model.model.embed_tokens.weight" not in alone


def serving(folder: Path, run: RunConfig) -> HFBackend:
    policy = open_policy(folder, torch_dtype(run.rollout.precision), "cpu", run)
    adapted = adapted_weights(policy, run, torch.device("cpu"))
    return HFBackend(policy, unsent_names(policy, run), adapted=adapted)


def send(learner: Learner, backend: HFBackend, has_base: bool) -> BucketLayout:
    """Send a version to a rollout worker that has the base already, or not."""
    layout = lay_out(learner.weight_layout(has_base), 10_000)
    for bucket in pack(learner.named_weights(has_base), layout, backend.policy_version + 1):
        backend.apply(bucket)
    return layout


def followed(folder: Path, algorithm: str, is_merged: bool = True) -> tuple[float, float, int, int]:
    """Return the gap between actor and a rollout worker after one version, and (sent, all) numbers."""
    run = adapted_run()
    run.algorithm.name, run.placement.offload = algorithm, is_merged
    learner = adapted(folder, run)
    update(learner, my_share(0))
    backend = serving(folder, run)
    policy = backend.policy
    for has_base in (False, True):
        layout = send(learner, backend, has_base)
    mine = my_share(1)
    arguments = (mine.images[0], ["push"] * len(mine.group), mine.proprio[0])
    with torch.no_grad():
        distribution, values = learner.forward(*arguments)
        served, served_values = policy(*arguments, 1.0)
    gap = norm_error(served.logits, distribution.logits)
    whole = sum(tensor.numel() for tensor in policy.module.state_dict().values())
    return gap, norm_error(served_values, values), layout.num_bytes // 4, whole


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_rollout_worker_that_loaded_the_folder_follows(two_ranks: RankPool, folder: Path, algorithm: str) -> None:
    for gap, value_gap, num_sent, num_whole in two_ranks.run(followed, folder, algorithm):
        assert gap < ROUNDING and value_gap < ROUNDING
        assert num_sent < num_whole


def test_adapters_alone_are_sent_and_say_the_same(two_ranks: RankPool, folder: Path) -> None:
    """Only adapters and wholly trained parts, once the weights under them have been sent."""
    merged = two_ranks.run(followed, folder, "ppo")[0]
    for gap, value_gap, num_sent, _ in two_ranks.run(followed, folder, "ppo", False):
        assert gap < ROUNDING and value_gap < ROUNDING
        assert num_sent < 0.7 * merged[2]


def unlike_merged(folder: Path, rollout: Precision, param: Precision) -> list[str]:
    """Return the weights of a rollout worker that merges adapters which are not those of one that gets them merged."""
    run = adapted_run(param_precision=param)
    run.rollout.precision = rollout
    learner, found = adapted(folder, run), []
    merging, given = serving(folder, run), serving(folder, as_in_turns(run))
    for version in range(2):
        update(learner, my_share(version))
        send(learner, merging, has_base=version > 0)
        learner.config = as_in_turns(run)
        send(learner, given, has_base=False)
        learner.config = run
        wanted = given.policy.module.state_dict()
        here = merging.policy.module.state_dict()
        found += [name for name, tensor in here.items() if not torch.equal(tensor, wanted[name])]
    return found


def as_in_turns(run: RunConfig) -> RunConfig:
    """The same run, with adapters that actor ranks merge."""
    return dataclasses.replace(run, placement=dataclasses.replace(run.placement, offload=True))


@pytest.mark.parametrize(
    ("rollout", "param"),
    [
        pytest.param(Precision.bf16, Precision.bf16, marks=pytest.mark.long),
        (Precision.bf16, Precision.fp32),
        (Precision.fp32, Precision.fp32),
    ],
)
def test_a_rollout_worker_merges_to_the_same_bits(
    two_ranks: RankPool, folder: Path, rollout: Precision, param: Precision
) -> None:
    assert two_ranks.run(unlike_merged, folder, rollout, param) == [[], []]


def test_adapters_without_the_weights_that_they_change_are_refused(one_rank: RankPool, folder: Path) -> None:
    assert "but not the weight that they change" in one_rank.run(refused_without_base, folder)[0]


def refused_without_base(folder: Path) -> str:
    run = adapted_run()
    backend = serving(folder, run)
    with pytest.raises(ValueError) as refusal:
        send(adapted(folder, run), backend, has_base=True)
    assert backend.policy_version == -1
    return str(refusal.value)


def resumed_apart(folder: Path, root: Path) -> float:
    """The gap of a rollout worker that was lost after a resume: it reads the checkpoint's policy, which is merged."""
    run = adapted_run()
    learner = adapted(folder, run)
    update(learner, my_share(0))
    saved = folder_of_step(root, 1)
    save_checkpoint(learner, saved, {"step": learner.num_updates})
    again = adapted(saved / "policy", run)
    checkpoint.restore(again, saved)
    backend = serving(saved / "policy", run)
    send(again, backend, has_base=False)
    policy = backend.policy
    mine = my_share(1)
    arguments = (mine.images[0], ["push"] * len(mine.group), mine.proprio[0])
    with torch.no_grad():
        return norm_error(policy(*arguments, 1.0)[0].logits, again.forward(*arguments)[0].logits)


def test_adapters_follow_a_resumed_actor(two_ranks: RankPool, folder: Path, tmp_path: Path) -> None:
    assert max(two_ranks.run(resumed_apart, folder, tmp_path)) < ROUNDING


def begun(folder: Path) -> float:
    """How far a policy with fresh adapters is from the one in the folder."""
    run = adapted_run()
    policy = open_policy(folder, torch.float32, "cpu", run)
    mine = my_share(0)
    arguments = (mine.images[0], ["push"] * len(mine.group), mine.proprio[0])
    with torch.no_grad():
        distribution, _ = adapted(folder, run).forward(*arguments)
        return norm_error(policy(*arguments, 1.0)[0].logits, distribution.logits)


def test_training_begins_with_the_policy_of_the_folder(two_ranks: RankPool, folder: Path) -> None:
    assert max(two_ranks.run(begun, folder)) < ROUNDING


def resumed(folder: Path, root: Path, saves: bool | None, resumes: bool | None) -> tuple[int, int, float]:
    """Return checksums of an uninterrupted and a resumed run, and the gap of the exported (merged) folder.

    saves, resumes: `actor.replicate_frozen` of the two.
    """
    run = adapted_run(replicate_frozen=saves)
    run.algorithm.kl_coef = 0.1  # a reference is kept
    whole = adapted(folder, run)
    update(whole, my_share(0))
    saved = folder_of_step(root, 1)
    save_checkpoint(whole, saved, {"step": 1})
    whole.offload()
    whole.onload()
    update(whole, my_share(1))
    run = adapted_run(replicate_frozen=resumes)
    run.algorithm.kl_coef = 0.1
    again = adapted(saved / "policy", run)
    checkpoint.restore(again, saved)
    merged = open_policy(saved / "policy", torch.float32, "cpu", run)
    mine = my_share(2)
    arguments = (mine.images[0], ["push"] * len(mine.group), mine.proprio[0])
    with torch.no_grad():
        distribution, _ = again.forward(*arguments)
        gap = norm_error(merged(*arguments, 1.0)[0].logits, distribution.logits)
    update(again, my_share(1))
    return checksum_of(whole), checksum_of(again), gap


@pytest.mark.parametrize(
    ("saves", "resumes"),
    [
        (True, False),
        *(
            pytest.param(saves, resumes, marks=pytest.mark.long)
            for saves, resumes in ((False, True), (False, False), (True, True))
        ),
    ],
)
def test_resumed_equals_uninterrupted_and_the_export_is_merged(
    two_ranks: RankPool, folder: Path, tmp_path: Path, saves: bool, resumes: bool
) -> None:
    for whole, again, gap in two_ranks.run(resumed, folder, tmp_path, saves, resumes):
        assert whole == again
        assert gap < ROUNDING


def types_and_state(folder: Path) -> tuple[set[str], set[str], int, int]:
    learner = adapted(folder, adapted_run(param_precision=Precision.bf16))
    update(learner, my_share(0))
    by_type = {True: set(), False: set()}
    for parameter in learner.sharded.module.parameters():
        by_type[parameter.requires_grad].add(str(parameter.dtype))
    with_state = len(learner.optimizer.inner.state)
    return by_type[True], by_type[False], with_state, len(list(learner.sharded.module.parameters()))


def test_what_does_not_train_has_no_state_and_half_the_bytes(two_ranks: RankPool, folder: Path) -> None:
    trained_types, frozen_types, with_state, num_parameters = two_ranks.run(types_and_state, folder)[0]
    assert trained_types == {"torch.float32"} and frozen_types == {"torch.bfloat16"}
    assert with_state < num_parameters / 2
