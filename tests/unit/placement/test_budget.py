"""The budget: exact for parameters and state; a full accelerator is refused with the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlrun.algorithms.spec import NftConfig
from rlrun.config.checks import OF_INPUTS
from rlrun.config.loader import load
from rlrun.config.registry import fill_lora
from rlrun.config.schema import (
    ClusterKind,
    OptimizerKind,
    Precision,
    RolloutBackendKind,
    RunConfig,
    ShardingStrategy,
    WeightTransport,
)
from rlrun.config.simulator_spec import num_cameras, simulator_spec
from rlrun.placement.budget import Budget, accelerators, budget, holds_base_on_device, hosts, starts_of_worker
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.memory import (
    activation_bytes,
    actor_memory,
    base_bytes,
    device_bytes,
)
from rlrun.placement.planner import plan
from rlrun.placement.policy_counts import estimated, policy_counts
from rlrun.placement.step_cost import links, step_bytes
from rlrun.placement.verdict import suggestions
from rlrun.placement.workload import Workload
from rlrun.policies.counting import count
from rlrun.policies.counts import PassCount, PolicyCounts
from rlrun.system.errors import RunError

SEVEN_BILLION = 7_541_237_184


def sums_of(config: RunConfig, machines: Inventory) -> Budget:
    work = Workload(config)
    return budget(work, plan(work, machines), machines)


def inventory(num_accelerators: int, memory_bytes: int | None) -> Inventory:
    accelerator = Accelerator("A100", memory_bytes, has_rt_cores=False)
    return Inventory((NodeInfo("n", "", 8, 10**12, (accelerator,) * num_accelerators),))


def counts_of(num_parameters: int) -> PolicyCounts:
    """A network without blocks and activations, so that only parameters count."""
    nothing = PassCount()
    return replace(estimated(RunConfig(), num_parameters), update=nothing, recompute=nothing)


@pytest.mark.parametrize(
    ("sharding", "param", "bytes_per_parameter"),
    [
        (ShardingStrategy.no_shard, Precision.fp32, 4 + 8),
        (ShardingStrategy.no_shard, Precision.bf16, 4 + 8),  # master weights in fp32
        (ShardingStrategy.full_shard, Precision.bf16, (4 + 8) / 8),
        (ShardingStrategy.shard_grad_op, Precision.bf16, (4 + 8) / 8),
        (ShardingStrategy.hybrid_shard, Precision.bf16, (4 + 8) / 4),
    ],
)
def test_resident_bytes_by_hand(sharding: ShardingStrategy, param: Precision, bytes_per_parameter: float) -> None:
    config = RunConfig()
    config.actor.num_workers, config.actor.fsdp_size = 8, 4
    config.actor.sharding, config.actor.param_precision = sharding, param
    memory = actor_memory(config, counts_of(8000))
    assert memory.resident_bytes == 8000 * bytes_per_parameter
    config.algorithm.kl_coef = 0.1  # needs a copy of the trained parameters
    computing = 1 if param is Precision.fp32 else 0.5  # of the master weights in fp32
    assert actor_memory(config, counts_of(8000)).reference == memory.weights * computing
    config.algorithm.name, config.algorithm.sections = "nft", {"nft": NftConfig(acting_rate=0.001)}
    assert actor_memory(config, counts_of(8000)).learned == memory.weights  # beside the policy that acts
    config.actor.cpu_offload = True
    assert actor_memory(config, counts_of(8000)).resident_bytes == 0


def test_moments_of_8_bits_are_a_quarter_and_a_scale_per_256() -> None:
    config = RunConfig()
    config.actor.num_workers, config.actor.optimizer = 8, OptimizerKind.adamw_8bit
    assert actor_memory(config, counts_of(8 * 256)).optimizer == 2 * (256 + 4)


def test_adapters_are_all_that_is_sent_after_the_first_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rollout workers merge into is sent once, and kept; an engine, and roles in turns, get weights merged."""
    monkeypatch.setattr("rlrun.placement.workload.policy_counts", count)
    config, machines = RunConfig(), inventory(0, 0)
    fill_lora(config)
    config.actor.lora.rank = 8
    later = sums_of(config, machines)
    assert later.weight_bytes == 4 * count(config).num_trained
    (host,) = later.hosts
    assert host.weight_bytes > 2 * later.weight_bytes  # the first version needs room as well
    config.placement.offload = True
    merged = sums_of(config, machines)
    assert merged.weight_bytes > 2 * later.weight_bytes


def test_the_weights_under_adapters_are_kept_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the card of a rollout worker, to the last byte; else in host memory."""
    monkeypatch.setattr("rlrun.placement.budget.HELD_BACK_BYTES", 0)
    monkeypatch.setattr("rlrun.placement.budget.HELD_BACK_SHARE", 0.0)
    monkeypatch.setattr("rlrun.placement.workload.policy_counts", count)
    config, unknown = RunConfig(), inventory(4, None)
    fill_lora(config)
    config.actor.lora.rank = 8
    config.rollout.num_workers = 2
    planned = plan(Workload(config), unknown)
    base = base_bytes(config, count(config))
    cards = budget(Workload(config), planned, unknown).accelerators
    holders = [card for card in cards if any(need.part == "copy of the base" for need in card.needs)]
    assert len(holders) == 2
    assert all(need.num_bytes == base for card in holders for need in card.needs if need.part == "copy of the base")
    most = max(card.peak_bytes for card in holders)
    for memory, is_on_device in ((most, True), (most - 1, False)):
        assert holds_base_on_device(Workload(config), plan(Workload(config), inventory(4, memory))) is is_on_device
    monkeypatch.setattr("rlrun.placement.budget.holds_base_on_device", lambda config, plan: False)
    elsewhere = budget(Workload(config), planned, unknown)
    assert elsewhere.hosts[0].offloaded_bytes == 2 * base
    assert not [need for card in elsewhere.accelerators for need in card.needs if need.part == "copy of the base"]


def test_gradients_stay_whole_until_the_last_micro_batch_if_parameters_stay_gathered() -> None:
    config = RunConfig()
    config.algorithm.global_batch_size, config.actor.micro_batch_size = 256, 64
    held = {}
    for config.actor.sharding in (ShardingStrategy.full_shard, ShardingStrategy.shard_grad_op):
        held[config.actor.sharding] = actor_memory(config, counts_of(10**9)).gradients
    assert held[ShardingStrategy.full_shard] == 2 * 10**9  # 4 bytes, over two ranks
    assert held[ShardingStrategy.shard_grad_op] == 4 * 10**9


def test_parameters_of_a_checkpoint_are_counted(tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 5), np.float32), "b": np.zeros((), np.float32)}, tmp_path / "model-1.safetensors")
    save_file({"c": np.zeros(7, np.float16)}, tmp_path / "model-2.safetensors")
    config = RunConfig()
    config.policy.path = str(tmp_path)
    assert policy_counts(config).num_parameters == 3 * 5 + 1 + 7


def test_small_policy_is_about_right() -> None:
    assert 500_000 < policy_counts(RunConfig()).num_parameters < 3_000_000


@pytest.mark.parametrize("data", [b"", b"\x08", b"\xff" * 64, bytes(64), b"\x02" + bytes(7) + b"[]"])
def test_weights_that_are_damaged_are_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    config = RunConfig()
    config.policy.path = str(tmp_path)
    with pytest.raises(RunError, match=r"model.safetensors cannot be read"):
        policy_counts(config)


def test_full_accelerator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """7B, two 120 GB accelerators, fp32: 106 GB of actor and 30 GB of rollout do not fit, but do in turns."""
    monkeypatch.setattr("rlrun.placement.workload.policy_counts", lambda config: counts_of(SEVEN_BILLION))
    monkeypatch.setattr("rlrun.placement.budget.has_known_devices", lambda plan: False)
    machines = inventory(2, 120 * 10**9)
    config = RunConfig()
    with pytest.raises(RunError) as refused:
        sums_of(config, machines)
    text = str(refused.value)
    assert "Accelerator 0 of node n (A100, 120.0 GB) is " in text and "GB short" in text
    assert "+ rollout/0 31.2 GB" in text
    assert refused.value.key == "actor.micro_batch_size" and "Most of it is of actor workers" in text
    unknown = inventory(2, None)
    sums = sums_of(config, unknown)  # nobody can say that it does not fit
    assert sums.accelerators[0].memory_bytes is None and not list(
        suggestions(Workload(config), plan(Workload(config), unknown), sums.times, unknown)
    )
    config.placement.offload = True
    shared = sums_of(config, machines)
    held = shared.accelerators[0]
    assert held.peak_bytes == sum(held.of_workers().values()) - held.of_workers()["rollout/0"]  # simulators stay


def test_step_bytes_follow_the_messages() -> None:
    """Observations: one 64 px frame and 61 numbers a chunk step."""
    config = RunConfig()
    sums = sums_of(config, inventory(6, 10**10))
    samples = config.env.num_envs * config.algorithm.horizon
    assert sums.observation_bytes == samples * (config.env.image_size**2 * 3 * num_cameras(config.env) + 61 * 4)
    assert sums.trajectory_bytes > sums.observation_bytes


def two_nodes(store_bytes: int | None, spill_bytes: int | None) -> Inventory:
    """An A100 trains, a 4090 simulates."""
    cards = (Accelerator("A100", 80 * 10**9, False),), (Accelerator("RTX 4090", 24 * 10**9, True),)
    names = ("train", "sim")
    return Inventory(
        tuple(
            NodeInfo(name, "", 8, 10**12, card, (), None, store_bytes, "/data/spill", spill_bytes)
            for name, card in zip(names, cards, strict=True)
        )
    )


def on_two_nodes() -> RunConfig:
    config = RunConfig()
    config.actor.num_workers = config.rollout.num_workers = config.env.num_workers = 1
    config.placement.nodes = {"train": {"accelerator": "A100"}, "sim": {"accelerator": "4090"}}
    config.placement.roles = {"actor": {"on": "train"}, "rollout": {"on": "train"}, "env": {"on": "sim"}}
    return config


def test_links_by_hand() -> None:
    """Frames go out once, trajectories once, actions and weights stay or come back."""
    config, machines = on_two_nodes(), two_nodes(None, None)
    sums = sums_of(config, machines)
    link = {(one.source, one.target): one for one in sums.links}
    there, back = link["sim", "train"], link["train", "sim"]
    assert there.num_bytes == sums.observation_bytes + sums.trajectory_bytes
    samples, numbers = config.env.num_envs * config.algorithm.horizon, 8 * config.policy.num_action_chunks
    assert back.num_bytes == samples * numbers * (4 + 4 + 1)  # action, logprob, token
    assert there.seconds == pytest.approx(there.num_bytes * 8 / 10e9)  # the default: 10 Gbit/s
    config.placement.roles["rollout"] = {"on": "sim"}
    sums = sums_of(config, machines)
    link = {(one.source, one.target): one.num_bytes for one in sums.links}
    assert link == {("sim", "train"): sums.trajectory_bytes, ("train", "sim"): sums.weight_bytes}


def test_fsdp_over_nodes_is_counted() -> None:
    """Two ranks on two nodes form a ring of two hops; each carries half of the gathered and reduced bytes."""
    config = on_two_nodes()
    config.actor.num_workers, config.env.num_workers = 2, 2
    config.placement.nodes, config.placement.roles = {}, {"actor": "0-1", "rollout": "0", "env": "0-1"}
    machines = two_nodes(None, None)
    sums = sums_of(config, machines)
    micro_batches = config.env.num_envs * config.algorithm.horizon * config.algorithm.update_epochs // 2 // 64
    fsdp = sums.num_parameters * (2 * 4 + 4) * micro_batches // 2
    towards_other = {(one.source, one.target): one.num_bytes for one in sums.links}["train", "sim"]
    assert fsdp <= towards_other <= fsdp + sums.trajectory_bytes + sums.weight_bytes


def test_fsdp_over_nodes_gathers_what_is_sharded_and_reduces_what_is_trained() -> None:
    config, machines = on_two_nodes(), two_nodes(None, None)
    config.actor.num_workers = 2
    config.placement.nodes, config.placement.roles = {}, {"actor": "0-1", "rollout": "0", "env": "0"}
    planned, step = plan(Workload(config), machines), step_bytes(Workload(config))

    def towards_other(num_trained: int, is_whole: bool) -> int:
        config.actor.replicate_frozen = is_whole
        counts = replace(policy_counts(config), num_trained=num_trained, num_frozen=9_000, num_unread=500)
        found = links(Workload(config, counts), planned, step, 0)
        return {(one.source, one.target): one.num_bytes for one in found}["train", "sim"]

    micro_batches = config.samples_per_step * config.algorithm.update_epochs // 2 // config.actor.micro_batch_size
    half = micro_batches // 2  # of a ring of two
    assert towards_other(1_000, False) - towards_other(1_000, True) == 8_500 * 2 * 4 * half
    assert towards_other(1_000, True) - towards_other(0, True) == 1_000 * (2 * 4 + 4) * half


@pytest.mark.parametrize("kind", list(ClusterKind))
def test_too_small_a_spill_disk_is_refused_with_the_numbers(kind: ClusterKind) -> None:
    config = on_two_nodes()
    config.weight_sync.bucket_bytes = 1_000_000
    config.cluster.kind = kind
    need = sums_of(config, two_nodes(None, None)).trajectory_bytes
    fits = two_nodes(need // 2, need // 2 + 1)  # weights stay in memory that both roles see
    assert sums_of(config, fits).stores[0].spilled_bytes > 0
    short = two_nodes(need // 2, need // 4)
    if kind is ClusterKind.local:  # has no object store
        sums_of(config, short)
        return
    with pytest.raises(RunError) as refused:
        sums_of(config, short)
    text = str(refused.value)
    config.collects_ahead = True
    with pytest.raises(RunError, match="rlrun.train keeps the trajectories of one step"):
        sums_of(config, fits)
    assert "too little room for the objects of a training step" in text and "/data/spill has room for" in text
    assert refused.value.exit_status == 3 and "spill_dirs" in text


def test_a_node_that_cannot_load_one_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.placement.workload.policy_counts", lambda config: counts_of(SEVEN_BILLION))
    node = NodeInfo("n", "", 8, 16 * 10**9, ())
    config = RunConfig()
    config.actor.sharding = ShardingStrategy.no_shard
    with pytest.raises(RunError, match="Node n has 14.8 GB too little memory to load one model"):
        sums_of(config, Inventory((node,)))


def test_activations_shrink_with_checkpointing() -> None:
    config = RunConfig()
    size = count(config)
    full = activation_bytes(config, size)
    config.actor.activation_checkpointing = True
    assert activation_bytes(config, size) < full
    config.actor.activation_checkpointing = False
    config.actor.micro_batch_size *= 2
    assert activation_bytes(config, size) == pytest.approx(2 * full, rel=0.05)


def test_host_memory_for_what_is_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 x 45 GB of actor. A rollout worker's weights are in the buffers of weight sync, 30 GB for both."""
    monkeypatch.setattr("rlrun.placement.workload.policy_counts", lambda config: counts_of(SEVEN_BILLION))
    config = RunConfig()
    config.placement.offload = True
    machines = inventory(2, 120 * 10**9)
    host = sums_of(config, machines).hosts[0]
    held = host.offloaded_bytes
    assert held == pytest.approx(2 * SEVEN_BILLION * (4 + 8) / 2, rel=0.01)
    assert host.weight_bytes == pytest.approx(SEVEN_BILLION * 4, rel=0.01)
    config.rollout.backend = RolloutBackendKind.sglang  # its engine's copy
    more = sums_of(config, machines).hosts[0].offloaded_bytes
    assert more - held == pytest.approx(2 * SEVEN_BILLION * 4, rel=0.01)
    (node,) = machines.nodes
    small = Inventory((replace(node, memory_bytes=100 * 10**9),))
    with pytest.raises(RunError, match=r"too little memory for roles that share accelerators"):
        sums_of(config, small)


def test_copies_of_a_checkpoint_in_the_background_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks copy half of 12 bytes a parameter each, also with moments in 8 bits; rank 0 the policy as well."""
    monkeypatch.setattr("rlrun.placement.workload.policy_counts", lambda config: counts_of(SEVEN_BILLION))
    config = RunConfig()
    machines = inventory(4, 200 * 10**9)
    assert sums_of(config, machines).hosts[0].saved_bytes == 0
    config.checkpoint.is_asynchronous = True
    for config.actor.optimizer in (OptimizerKind.adamw, OptimizerKind.adamw_8bit):
        held = sums_of(config, machines).hosts[0].saved_bytes
        assert held == pytest.approx(SEVEN_BILLION * (4 + 8 + 4), rel=0.01)
    (node,) = machines.nodes
    small = Inventory((replace(node, memory_bytes=100 * 10**9),))
    with pytest.raises(RunError, match=r"too little memory for checkpoints in the background") as refused:
        sums_of(config, small)
    assert "checkpoint.is_asynchronous=false" in str(refused.value)


def test_what_an_algorithm_keeps_is_counted() -> None:
    """Two ranks keep a replay buffer each, of choices and what was seen after them."""
    overrides = ["policy=smolvla_dsrl", "actor.num_workers=2", "algorithm.dsrl.replay_size=10_000_000"]
    machines = inventory(4, 80 * 10**9)
    config, background = load(overrides), load([*overrides, "checkpoint.is_asynchronous=true"])
    host = sums_of(config, machines).hosts[0]
    assert host.algorithm_bytes == 2 * 10_000_000 * 2 * policy_counts(config).choice_bytes
    assert sums_of(background, machines).hosts[0].saved_bytes > host.algorithm_bytes
    (node,) = machines.nodes
    small = Inventory((replace(node, memory_bytes=host.algorithm_bytes),))
    with pytest.raises(RunError, match=r"too little memory for what the algorithm keeps") as refused:
        sums_of(config, small)
    assert "algorithm.dsrl, such as a smaller replay_size" in str(refused.value)


def placed(
    transport: WeightTransport,
    rollout_on: str,
    kind: ClusterKind = ClusterKind.ray,
    in_turns: bool = False,
    collects_ahead: bool = False,
) -> Budget:
    """Two rollout workers beside the actor or on the other node, buckets of 1 MB."""
    config = on_two_nodes()
    config.placement.offload, config.collects_ahead = in_turns, collects_ahead
    config.rollout.num_workers = config.env.num_workers = 2
    config.weight_sync.transport, config.weight_sync.bucket_bytes, config.cluster.kind = transport, 1_000_000, kind
    config.placement.roles["rollout"] = {"on": rollout_on, "workers_per_accelerator": 2}
    config.placement.roles["env"]["workers_per_accelerator"] = 2
    machines = two_nodes(None, None)
    return sums_of(config, machines)


def test_buckets_in_transit_are_counted() -> None:
    """By hand: shared memory once; collective: two buckets at the sender and at each receiver; stores: alike, but a
    node's workers share theirs."""
    one = placed(WeightTransport.object_store, "train")
    version = one.weight_bytes
    assert version > 2_000_000
    assert {host.node.name: host.weight_bytes for host in one.hosts} == {"train": version, "sim": 0}
    assert {store.node.name: store.needed_bytes for store in one.stores}["train"] == one.trajectory_bytes
    ahead = placed(WeightTransport.object_store, "train", collects_ahead=True)  # two steps where the env workers are
    assert {store.node.name: store.needed_bytes for store in ahead.stores}["sim"] == 2 * one.trajectory_bytes
    assert {store.node.name: store.needed_bytes for store in ahead.stores}["train"] == one.trajectory_bytes
    apart = placed(WeightTransport.collective, "sim")
    assert {host.node.name: host.weight_bytes for host in apart.hosts} == {"train": 2_000_000, "sim": 4_000_000}
    stored = placed(WeightTransport.object_store, "sim")
    assert {host.node.name: host.weight_bytes for host in stored.hosts} == {"train": 0, "sim": 0}
    needed = {store.node.name: store.needed_bytes - stored.trajectory_bytes for store in stored.stores}
    assert needed == {"train": 2_000_000, "sim": 2_000_000}
    alone = placed(WeightTransport.object_store, "train", ClusterKind.local)
    assert {host.node.name: host.weight_bytes for host in alone.hosts} == {"train": version, "sim": 0}
    beside = placed(WeightTransport.object_store, "train", in_turns=True)  # both take it from there in their turn
    assert {host.node.name: host.weight_bytes for host in beside.hosts} == {"train": version, "sim": 0}
    for transport, of_actor in ((WeightTransport.object_store, 0), (WeightTransport.collective, 2_000_000)):
        kept = placed(transport, "sim", in_turns=True)  # each keeps it until its turn
        assert {host.node.name: host.weight_bytes for host in kept.hosts} == {"train": of_actor, "sim": 2 * version}


def test_buckets_on_accelerators_are_counted_with_nccl() -> None:
    config = on_two_nodes()
    config.weight_sync.transport, config.weight_sync.bucket_bytes = WeightTransport.collective, 1_000_000
    planned = plan(Workload(config), two_nodes(None, None))
    for backend, expected in (("nccl", {"actor/0": 2_000_000, "rollout/0": 2_000_000}), ("gloo", {})):
        choice = replace(planned.sync_backend, value=backend)
        assert device_bytes(Workload(config), replace(planned, sync_backend=choice)) == expected


def test_buckets_are_on_the_accelerators_of_rank_0_and_of_the_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"actor/0": 2_000_000, "rollout/0": 2_000_000}
    monkeypatch.setattr("rlrun.placement.budget.device_bytes", lambda config, plan: held)
    config = RunConfig()
    config.actor.num_workers, config.rollout.num_workers = 2, 1
    machine = inventory(3, 80 * 10**9)
    found = sums_of(config, machine)
    holders = [need.worker for card in found.accelerators for need in card.needs if need.part == "weight buckets"]
    assert sorted(holders) == ["actor/0", "rollout/0"]


def test_a_node_without_room_for_weights_on_their_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four copies of 30 GB: one loads at a time in 70 GB, and all receive at once."""
    monkeypatch.setattr("rlrun.placement.workload.policy_counts", lambda config: counts_of(SEVEN_BILLION))
    config = RunConfig()
    config.actor.num_workers, config.rollout.num_workers, config.env.num_workers = 1, 4, 4
    config.actor.sharding = ShardingStrategy.no_shard
    config.weight_sync.transport = WeightTransport.collective
    config.rollout.backend = RolloutBackendKind.sglang  # its engine takes a version as a whole
    node = NodeInfo("n", "", 8, 70 * 10**9, ())
    with pytest.raises(RunError, match=r"Node n has 174\.4 GB too little memory for weights on their way") as refused:
        sums_of(config, Inventory((node,)))
    assert "rollout.precision=bf16" in str(refused.value)


def test_states_that_an_algorithm_keeps_are_counted() -> None:
    """Of each transition two states, the chosen numbers, reward and discount; RLPD keeps the demonstrations, too."""
    common = ["run=halfcheetah", "policy.mlp.distribution=squashed", "env.max_control_steps=100", "demos.noise=0"]
    expert = ["env.gymnasium.expert=rlrun.envs.gymnasium.experts:mountain_car", "demos.num_episodes=7"]
    for name, num_rows in (("sac", 5000), ("rlpd", 5000 + 700)):
        config = load([*common, *expert, f"algorithm.name={name}", f"algorithm.{name}.replay_size=5000"])
        machines = inventory(4, 80 * 10**9)
        host = sums_of(config, machines).hosts[0]
        num_proprio = simulator_spec(config.env).world.planned_spaces(config.env).num_proprio
        assert host.algorithm_bytes == num_rows * (8 * num_proprio + policy_counts(config).choice_bytes + 8)


def test_libero_rows_share_the_textures_of_their_scenes() -> None:
    """A worker has as many scenes open as its rows have tasks, and two more; groups of rows share a start."""
    rows = {}
    for suite in ("libero_goal", "libero_10"):
        env = load(["run=libero_rlinf", f"env.libero.suite={suite}"], skipped=OF_INPUTS).env
        memory = simulator_spec(env).resources.memory(env)
        rows[suite] = memory.of(64) - memory.of(1), memory.of(8), memory.of(8, 1)
    assert rows["libero_goal"][0] == 0, "all tasks have one scene, and rows take no memory of the card"
    assert rows["libero_10"][1] > rows["libero_10"][2] > rows["libero_goal"][2]
    grouped = load(["run=libero_rlinf", "placement.inventory=any"], skipped=OF_INPUTS)
    assert starts_of_worker(replace(grouped, env=replace(grouped.env, num_workers=32))) == 2  # 16 rows, groups of 8


def test_the_state_of_an_offloaded_actor_is_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.placement.workload.policy_counts", lambda config: counts_of(SEVEN_BILLION))
    machines = inventory(2, 80 * 10**9)
    config = RunConfig()
    config.actor.cpu_offload = True
    planned = plan(Workload(config), machines)
    counts = counts_of(SEVEN_BILLION)
    (host,) = hosts(Workload(config, counts), planned, 0)
    assert host.offloaded_bytes > 12 * SEVEN_BILLION  # master weights and two moments, over both ranks
    assert accelerators(Workload(config, counts), planned, machines)[0].peak_bytes < 80 * 10**9


def test_a_second_simulator_for_evaluations_is_counted() -> None:
    machines = inventory(2, 80 * 10**9)
    sizes = []
    for every_steps in (0, 5):
        config = load(["algorithm.carry_episodes=true", f"evaluation.every_steps={every_steps}"])
        cards = accelerators(Workload(config, counts_of(10**6)), plan(Workload(config), machines), machines)
        sizes.append(sum(need.num_bytes for card in cards for need in card.needs if need.part == "simulator"))
    assert sizes[1] == 2 * sizes[0]


@pytest.mark.parametrize(("memory_bytes", "fits"), [(100 * 10**9, False), (300 * 10**9, True)])
def test_a_host_without_accelerators_holds_the_models_as_well(memory_bytes: int, fits: bool) -> None:
    """Weights, gradients and two moments of 7.5 billion numbers in fp32 are 120 GB."""
    config = RunConfig()
    config.actor.num_workers = config.rollout.num_workers = config.env.num_workers = 1
    machine = Inventory((NodeInfo("n", "", 8, memory_bytes, ()),))
    work = Workload(config, counts=counts_of(SEVEN_BILLION))
    planned = plan(work, machine)
    if fits:
        assert hosts(work, planned, 0)[0].model_bytes > 100 * 10**9
    else:
        with pytest.raises(RunError, match="too little memory for its actor and rollout workers"):
            hosts(work, planned, 0)
