"""Choices of the plan against all combinations, the usual numbers of a laptop, and refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from rlrun.config.loader import load
from rlrun.config.provenance import as_tree
from rlrun.config.schema import RunConfig
from rlrun.placement import workload
from rlrun.placement.budget import accelerators, hosts
from rlrun.placement.choices import choose, with_less_memory
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.memory import version_bytes
from rlrun.placement.planner import plan
from rlrun.placement.search import SHARES, ranks_of
from rlrun.placement.step_time import step_times
from rlrun.placement.workload import Workload
from rlrun.policies.counts import PassCount, PolicyCounts, StackCount
from rlrun.system.errors import RunError

AUTO = [
    f"{key}=auto"
    for key in ("env.num_workers", "rollout.num_workers", "actor.micro_batch_size", "actor.activation_checkpointing")
]
COUNTS = PolicyCounts(
    *(10**9, 10**9, 0, 0, 10**9, (), 0),
    act=PassCount(flops=2e12, num_bytes=2e9, num_kernels=1500),
    update=PassCount(flops=6e12, num_bytes=2e10, num_kernels=5000),
    recompute=PassCount(flops=8e12, num_bytes=3e10, num_kernels=7000),
)


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "policy_counts", lambda config: COUNTS)


def machines(memory_bytes: int = 80 * 10**9, model: str = "A100", num_cards: int = 2, cores: int = 16) -> Inventory:
    cards = tuple(Accelerator(model, memory_bytes, False) for _ in range(num_cards))
    return Inventory((NodeInfo("n", "", cores, 10**12, cards),))


def config_of(*more: str) -> RunConfig:
    return load(["env.num_envs=8", "algorithm.horizon=4", "algorithm.global_batch_size=32", *AUTO, *more])


def seconds(config: RunConfig, inventory: Inventory) -> float:
    planned = plan(Workload(config), inventory)
    accelerators(Workload(config, COUNTS), planned, inventory)
    hosts(Workload(config, COUNTS), planned, version_bytes(config, COUNTS)[0])
    return step_times(Workload(config, COUNTS), planned, version_bytes(config, COUNTS)[1]).step_s


def test_a_rank_has_a_sample_of_each_batch_where_there_are_more_cards() -> None:
    assert ranks_of(config_of("algorithm.global_batch_size=4"), 24)[-1] == 4


def test_no_other_combination_is_faster() -> None:
    config, inventory = config_of(), machines()
    found = choose(Workload(config), inventory)
    chosen = found.work.config
    assert not chosen.auto and found.sentences[0].startswith("Chosen: env.num_workers=")
    divisors = [1, 2, 4, 8, 16]
    every = []
    for env_workers, rollouts, rows, share in itertools.product(divisors[:4], divisors[:2], divisors, SHARES):
        if rollouts > env_workers:
            continue
        other = replace(
            config,
            env=replace(config.env, num_workers=env_workers),
            rollout=replace(config.rollout, num_workers=rollouts),
            actor=replace(config.actor, micro_batch_size=rows, activation_checkpointing=share),
            auto=[],
        )
        every.append(seconds(other, inventory))
    assert seconds(chosen, inventory) <= 1.01 * min(every)


def test_env_workers_have_whole_groups_where_groups_are_filtered() -> None:
    grouped = [
        "algorithm.name=grpo",
        "algorithm.horizon=11",
        "algorithm.global_batch_size=22",
        "algorithm.grpo.group_size=4",
        "algorithm.filter_groups.enable=true",
    ]
    assert config_of(*grouped).env.num_workers == 2  # until the plan chooses
    chosen = choose(Workload(config_of(*grouped)), machines()).work.config
    every = config_of(*grouped, "algorithm.filter_groups.enable=false")
    kept = choose(Workload(every), machines()).work.config
    assert chosen.env.num_workers == 2 < kept.env.num_workers


def test_given_numbers_stay() -> None:
    config = config_of("env.num_workers=4", "actor.micro_batch_size=2")
    chosen = choose(Workload(config), machines()).work.config
    assert (chosen.env.num_workers, chosen.actor.micro_batch_size) == (4, 2)


def test_a_laptop_takes_the_usual_numbers() -> None:
    config = config_of()
    for inventory in (machines(num_cards=0),):
        found = choose(Workload(config), inventory)
        chosen = found.work.config
        usual = load(["env.num_envs=8", "algorithm.horizon=4", "algorithm.global_batch_size=32"])
        assert replace(chosen.actor, activation_checkpointing=0.0, cpu_offload=None) == usual.actor
        assert (chosen.env, chosen.rollout) == (usual.env, usual.rollout)
        assert "Usual numbers" in found.sentences[0]


@pytest.mark.parametrize(("memory_gb", "is_whole"), [(80, True), (42, False)])
def test_frozen_weights_are_whole_where_they_fit(
    memory_gb: int, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 GB of frozen weights in bf16 on four ranks: 2.5 GB of each, or all of them."""
    blocks = StackCount((250_000_000,) * 24, (40_000_000,) * 24, 0, 0)
    frozen = replace(COUNTS, num_parameters=6 * 10**9, num_frozen=5 * 10**9, stacks=(blocks,))
    monkeypatch.setattr(workload, "policy_counts", lambda config: frozen)
    inventory = machines(memory_gb * 10**9, num_cards=4)
    keys = ["actor.num_workers=4", "actor.sharding=full_shard", "actor.param_precision=bf16"]
    found = choose(Workload(config_of(*keys)), inventory)
    assert found.work.config.actor.replicate_frozen is (True if is_whole else None)
    assert any("actor.replicate_frozen=true" in one for one in found.sentences) is is_whole
    for given in (True, False):
        config = config_of(*keys, f"actor.replicate_frozen={given}")
        kept = choose(Workload(config), machines(num_cards=4))
        assert kept.work.config.actor.replicate_frozen is given and len(kept.sentences) == 1


def test_one_rank_or_nothing_frozen_changes_no_key() -> None:
    for keys in ([], ["actor.num_workers=2", "actor.sharding=full_shard"]):
        chosen = choose(Workload(config_of(*keys)), machines())
        assert chosen.work.config.actor.replicate_frozen is None


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(RunError, match="short"):
        choose(Workload(config_of()), machines(memory_bytes=2 * 10**9))


def test_an_evaluation_needs_no_room_for_training() -> None:
    """Machines on which no training step fits may evaluate."""
    small = machines(memory_bytes=2 * 10**9)
    chosen = choose(Workload(config_of()), small, ["env", "rollout"])
    assert not chosen.work.config.auto and "Usual numbers" in chosen.sentences[0]
    assert not chosen.plan.of("actor")


def test_unlike_accelerators_are_ranked_by_time() -> None:
    """Rollout workers answer on the H100s that also train, not on idle 3090s."""
    config = load(["env.num_workers=4", "rollout.num_workers=2", "env.num_envs=8", "algorithm.global_batch_size=8"])
    cards = (*(Accelerator("H100", 80 * 10**9, False),) * 2, *(Accelerator("3090", 24 * 10**9, True),) * 2)
    inventory = Inventory((NodeInfo("n", "", 16, 10**12, cards),))
    planned = plan(Workload(config), inventory)
    assert {slot.accelerator_model for slot in planned.of("rollout")} == {"H100"}


def test_a_record_has_numbers_and_the_request_the_word() -> None:
    config = config_of()
    assert as_tree(config)["actor"]["micro_batch_size"] == "auto"
    chosen = choose(Workload(config), machines()).work.config
    assert as_tree(chosen)["actor"]["micro_batch_size"] == chosen.actor.micro_batch_size


def test_less_memory_step_by_step() -> None:
    """Frozen weights sharded; half the rows, down to one; then all blocks checkpointed; then nothing is left."""
    keys = ["actor.micro_batch_size=4", "actor.sharding=full_shard", "actor.replicate_frozen=true"]
    config = load([*keys, "algorithm.global_batch_size=32", "actor.num_workers=2"])
    found = []
    lowered: RunConfig | None = config
    while (lowered := with_less_memory(lowered)) is not None:
        actor = lowered.actor
        found.append((actor.replicate_frozen, actor.micro_batch_size, actor.activation_checkpointing))
    assert found == [(False, 4, 0.0), (False, 2, 0.0), (False, 1, 0.0), (False, 1, 1.0)]


@pytest.mark.parametrize(("text", "value"), [("true", 1.0), ("false", 0.0), ("0.25", 0.25), ("1", 1.0)], ids=str)
def test_checkpointing_is_a_share(text: str, value: float) -> None:
    assert load([f"actor.activation_checkpointing={text}"]).actor.activation_checkpointing == value


@pytest.mark.parametrize("argument", ["actor.micro_batch_size=many", "env.num_workers=1.5", "rollout.num_workers=all"])
def test_other_words_are_refused(argument: str) -> None:
    with pytest.raises(RunError, match="does not take this value") as raised:
        load([argument])
    assert "auto" in str(raised.value.remedy) and argument.split("=")[1] in str(raised.value)
