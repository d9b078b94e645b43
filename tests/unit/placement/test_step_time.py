"""The time model against the times that an H200 took, and its rules by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.planner import plan
from rlrun.placement.step_time import (
    ACT_LAUNCH_S,
    ADAM_BYTES,
    BANDWIDTH_SHARE,
    EXPOSED_SHARE,
    OPTIMIZER_STEP_S,
    PRODUCTS_SHARE,
    SMALL_STEP_S,
    STRAGGLING,
    compiles,
    device_of,
    has_known_devices,
    link_seconds,
    pass_seconds,
    step_times,
    together,
    update_pass_seconds,
    update_seconds,
)
from rlrun.placement.workload import Workload
from rlrun.policies.counts import PassCount, PolicyCounts, StackCount

RUNS = {"libero": "libero_rlinf", "behavior": "behavior_ppo_openvla_oft"}
COUNTS = Path(__file__).parents[2] / "golden" / "policy_counts"
# docs/gpu.md, the table of 2026-11-26: rows of an answer -> seconds (of the MFU, which has one digit more)
ACT = {
    "libero": {1: 0.026, 2: 0.030, 8: 0.077, 16: 0.146},
    "behavior": {1: 0.040, 2: 0.068, 8: 0.229, 16: 0.458},
}
# rows of each of two micro-batches, with adapters and recomputation, and one optimizer step -> seconds
UPDATE = {"libero": {2: 1.21, 8: 1.35, 32: 2.66}, "behavior": {2: 1.52, 8: 2.34, 32: 7.22}}
OLD_OPTIMIZER_STEP_S = 0.09  # in those runs torch planned a sharded tensor for each operation of the optimizer
WORK = PassCount(flops=1e12, num_bytes=1e9, num_kernels=1000)
SMALL = PolicyCounts(10**6, 10**6, 0, 0, 10**6, (), 0, WORK, WORK, WORK)


@pytest.mark.parametrize("robot", ["libero", "behavior"])
def test_the_times_of_an_h200(robot: str) -> None:
    counts = PolicyCounts.from_json((COUNTS / f"{robot}_lora.json").read_text())
    # rollout workers have merged weights
    merged = PolicyCounts.from_json((COUNTS / f"{RUNS[robot]}.json").read_text())
    device = device_of("NVIDIA H200")
    assert device is not None
    found = {
        f"act {rows}": pass_seconds(merged.act, rows, device, ACT_LAUNCH_S) / seen for rows, seen in ACT[robot].items()
    }
    for rows, seen in UPDATE[robot].items():
        found[f"update {rows}"] = (2 * update_pass_seconds(counts, 1.0, rows, device) + OLD_OPTIMIZER_STEP_S) / seen
    wrong = {name: round(ratio, 2) for name, ratio in found.items() if not 0.8 <= ratio <= 1.2}
    assert not wrong, f"model / seen: {wrong}"


def test_a_pass_waits_for_the_host_or_for_the_card() -> None:
    device = device_of("NVIDIA A100-SXM4-80GB")
    assert device is not None and device_of("GeForce 9800") is None
    computing = 1e12 / (PRODUCTS_SHARE * 312e12) + 1e9 / (BANDWIDTH_SHARE * 2.04e12)
    assert pass_seconds(WORK, 3, device, 0.0) == pytest.approx(3 * computing)
    assert pass_seconds(WORK, 3, device, 1e-5) == pytest.approx(math.hypot(0.01, 3 * computing))
    fixed = replace(WORK, fixed_flops=5e11)
    assert pass_seconds(fixed, 2, device, 0.0) == pytest.approx(2 * computing + 5e11 / (PRODUCTS_SHARE * 312e12))


def test_a_share_of_the_blocks_is_computed_again() -> None:
    device = device_of("H100")
    assert device is not None
    again = replace(SMALL, recompute=replace(WORK, flops=2e12, num_kernels=1600))
    none, half, all_blocks = (update_pass_seconds(again, share, 4, device) for share in (0.0, 0.5, 1.0))
    assert none < half < all_blocks


def run(num_envs: int, env_workers: int, rollout_workers: int, model: str = "A100") -> tuple[RunConfig, Inventory]:
    config = RunConfig()
    config.env.num_envs, config.env.num_workers, config.rollout.num_workers = num_envs, env_workers, rollout_workers
    config.algorithm.global_batch_size = num_envs * config.algorithm.horizon
    cards = tuple(Accelerator(model, 10**11, False) for _ in range(2))
    return config, Inventory((NodeInfo("n", "", 64, 10**12, cards),))


def test_simulation_and_answers_overlap_with_two_groups() -> None:
    """A group of env workers simulates while the other one is answered."""
    collected = {}
    for env_workers in (2, 4):
        config, machines = run(16, env_workers, 2)
        times = step_times(Workload(config, SMALL), plan(Workload(config), machines), 0)
        assert times.simulate_s is not None
        collected[env_workers] = times
    alone, paired = collected[2], collected[4]
    assert alone.collect_s == pytest.approx(alone.simulate_s + alone.act_s)  # one group: one after the other
    assert paired.collect_s < paired.simulate_s + paired.act_s


def test_workers_beyond_the_cores_take_turns() -> None:
    config, machines = run(16, 16, 2)
    few = Inventory((replace(machines.nodes[0], num_cpus=4),))
    plenty, scarce = (step_times(Workload(config, SMALL), plan(Workload(config), one), 0) for one in (machines, few))
    assert scarce.simulate_s == pytest.approx(4 * (plenty.simulate_s or 0))


def test_rollout_workers_of_one_accelerator_take_turns() -> None:
    config, machines = run(16, 4, 4)
    shared = step_times(Workload(config, SMALL), plan(Workload(config), machines), 0)
    config, machines = run(8, 2, 2)  # as many rows for each rollout worker
    own = step_times(Workload(config, SMALL), plan(Workload(config), machines), 0)
    assert shared.act_s == pytest.approx(2 * own.act_s)


def test_weights_have_arrived_with_their_slowest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {WeightTransport.object_store: 0.5, WeightTransport.collective: 2.0}
    monkeypatch.setattr("rlrun.placement.step_time.way_seconds", lambda *_: ways)
    config, machines = run(8, 2, 2)
    assert step_times(Workload(config, SMALL), plan(Workload(config), machines), 0).sync_s == 2.0


def test_the_slower_model_decides() -> None:
    """Ranks wait for each other, so of an A100 and an H100 the A100's peak counts."""
    config, machines = run(16, 2, 2)
    cards = (Accelerator("A100", 10**11, False), Accelerator("H100", 10**11, False))
    config.placement.roles = {"actor": "0-1", "rollout": "0-1", "env": "0-1"}
    mixed = Inventory((replace(machines.nodes[0], accelerators=cards),))
    assert step_times(Workload(config, SMALL), plan(Workload(config), mixed), 0).update_s == pytest.approx(
        step_times(Workload(config, SMALL), plan(Workload(config), machines), 0).update_s
    )


@pytest.mark.parametrize(
    ("keys", "num_steps"),
    [
        (["policy=smolvla_dsrl", "algorithm.dsrl.num_updates=50"], 100),
        (["run=halfcheetah_sac"], 64 * 2),  # 4 envs x 16 chunk steps, one step of the critics and of the policy each
        (["run=halfcheetah_sac", "algorithm.sac.critic_steps=2", "algorithm.sac.update_ratio=4"], 64 * 4 * 1.5),
    ],
)
def test_off_policy_updates_are_steps_of_small_networks(keys: list[str], num_steps: float) -> None:
    config = load(keys)
    times = step_times(Workload(config, SMALL), plan(Workload(config), run(8, 2, 2)[1]), 0)
    assert times.update_s == pytest.approx(num_steps * SMALL_STEP_S) and times.mfu_update == 0


def test_an_unknown_device_has_no_time() -> None:
    config, machines = run(16, 2, 2, "X")
    assert not has_known_devices(plan(Workload(config), machines))
    config, machines = run(16, 2, 2)
    assert has_known_devices(plan(Workload(config), machines))


def test_stored_counts_are_those_of_the_tables() -> None:
    """The measured policy has 7.5 billion parameters, of which adapters are few."""
    stored = json.loads((COUNTS / "behavior_lora.json").read_text())
    assert stored["num_parameters"] == pytest.approx(7.55e9, rel=0.01)
    assert stored["num_trained"] < 0.03 * stored["num_parameters"]


def test_links_of_fsdp_by_hand() -> None:
    """Two gathers of what is sharded, one reduction of gradients, at the bus bandwidth; between nodes at the link's."""
    config, machines = run(16, 2, 2)
    device = device_of("A100")
    assert device is not None
    alone = plan(Workload(config), machines)
    counts = replace(SMALL, num_parameters=10**9, num_trained=10**8)
    expected = (2 * 10**9 * 4 + 10**8 * 4) / 2 / device.link_bytes  # half of it: two ranks
    assert link_seconds(config, alone, counts, device) == pytest.approx(expected)
    whole = replace(config, actor=replace(config.actor, replicate_frozen=True))
    assert link_seconds(whole, alone, counts, device) == pytest.approx(3 * 10**8 * 4 / 2 / device.link_bytes)
    cards = machines.nodes[0].accelerators[:1]
    spread = Inventory(tuple(replace(machines.nodes[0], name=name, accelerators=cards) for name in ("a", "b")))
    far = link_seconds(config, plan(Workload(config), spread), counts, device)
    assert far == pytest.approx(expected * device.link_bytes / (config.placement.link_gbit_per_s * 1e9 / 8))
    config.actor.num_workers = 1
    assert link_seconds(config, plan(Workload(config), machines), counts, device) == 0


def test_links_are_hidden_but_for_a_part_of_the_shorter_time() -> None:
    assert together(1.0, 0.0) == 1.0
    assert together(1.0, 0.5) == pytest.approx(1.0 + EXPOSED_SHARE * 0.5)
    assert together(0.5, 1.0) == pytest.approx(1.0 + EXPOSED_SHARE * 0.5)


def test_adam_takes_its_traffic_where_that_is_longer_than_its_launches() -> None:
    config, machines = run(16, 2, 2)
    planned = plan(Workload(config), machines)
    few, many = (replace(SMALL, num_trained=number) for number in (10**6, 10**10))
    seconds = [update_seconds(Workload(config, one), planned, 8, 0.0) for one in (few, many)]
    device = device_of("A100")
    assert device is not None
    steps = config.samples_per_step * config.algorithm.update_epochs / config.algorithm.global_batch_size
    adam = ADAM_BYTES * 10**10 / 2 / (BANDWIDTH_SHARE * device.num_bytes)
    assert seconds[1] - seconds[0] >= steps * (adam - OPTIMIZER_STEP_S) * 0.999


def test_the_slowest_of_many_env_workers_is_waited_for() -> None:
    config, machines = run(64, 64, 2)
    few, _ = run(2, 2, 2)
    many_s = step_times(Workload(config, SMALL), plan(Workload(config), machines), 0).simulate_s or 0.0
    few_s = (
        step_times(Workload(few, SMALL), plan(Workload(few), machines), 0).simulate_s or 0.0
    )  # as many envs a worker
    ratio = (1 + STRAGGLING * math.sqrt(2 * math.log(64))) / (1 + STRAGGLING * math.sqrt(2 * math.log(2)))
    assert many_s / few_s == pytest.approx(ratio)


def test_inductor_fuses_the_kernels_of_blocks() -> None:
    device = device_of("H100")
    assert device is not None
    eager, fused = (update_pass_seconds(SMALL, 0.0, 4, device, is_compiled) for is_compiled in (False, True))
    assert fused < eager
    blocks = replace(SMALL, stacks=(StackCount((1,), (1,), 1, 1),))
    config, _ = run(16, 2, 2)
    assert compiles(config, blocks) and not compiles(config, SMALL)
    assert not compiles(load(["policy.compile_backend=none"]), blocks)


def test_offloading_takes_time() -> None:
    config, machines = run(16, 2, 2)
    planned, big = plan(Workload(config), machines), replace(SMALL, num_parameters=10**9, num_trained=10**9)
    turns = replace(config, placement=replace(config.placement, offload=True))
    moved = replace(config, actor=replace(config.actor, cpu_offload=True))
    present = step_times(Workload(config, big), planned, 0)
    assert step_times(Workload(turns, big), planned, 0).step_s > present.step_s
    assert step_times(Workload(moved, big), planned, 0).update_s > present.update_s
