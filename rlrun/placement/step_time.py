"""The time of a training step by a model: simulation, answers, updates and weights on their way.

A pass over some rows takes hypot(launching, computing) seconds. Launching is the host's time: kernels x the time of
one launch, whatever the number of rows. Computing is the card's: matrix products at a share of its peak, all else at a
share of its memory's bandwidth. Where both are alike, parts of a pass wait for the host and parts for the card, so
neither the larger one nor the sum is right. The constants reproduce the 14 times of docs/gpu.md within 20 %
(tests/unit/placement/test_step_time.py). Links of FSDP, Adam's traffic, the slowest of several env workers and what
Inductor fuses are estimates from published numbers: no run of several cards was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import CompileBackend, RunConfig, WeightTransport
from rlrun.config.simulator_spec import SimulatorTime
from rlrun.placement.memory import actor_memory
from rlrun.placement.plan import Plan
from rlrun.placement.workload import Workload
from rlrun.policies.counts import PassCount, PolicyCounts, replicates_frozen

# of the peaks, as large kernels reach them
PRODUCTS_SHARE = 0.70
BANDWIDTH_SHARE = 0.80
ACT_LAUNCH_S = 15e-6  # of the host, a kernel without gradients
UPDATE_LAUNCH_S = 37e-6  # with autograd and FSDP
RECOMPUTE_LAUNCH_S = 50e-6  # with checkpointed blocks, whose saved tensors pass through hooks
SMALL_STEP_S = 0.01  # of the host: forward, backward and Adam of small networks, such as critics; an estimate
OPTIMIZER_STEP_S = 0.045  # of the host, clipping and AdamW of 850 shards
SHARED_MEMORY_BYTES_S = 25e9  # weights of a version, between workers of a node
DEVICE_MEMORY_BYTES_S = 60e9  # into memory of the same accelerator and out of it; an estimate, measured on no card
PCIE_BYTES_S = 25e9  # between host and accelerator, each way; an estimate
HOST_ADAM_BYTES_S = 20e9  # of AdamW on the cores of a rank; an estimate
HOST_ADAM_BYTES = 28  # of a parameter: weight, gradient and moments read, three of them written
EXPOSED_SHARE = 0.15  # of gathering parameters, where it takes less time than the passes that it runs beside
ADAM_BYTES = 46  # of a parameter and optimizer step: weight, gradient, moments, and the norm of gradients
STRAGGLING = 0.05  # standard deviation of the time of a chunk between env workers, of its mean
# by which Inductor divides the traffic and the launches of a pass
FUSED_BYTES = 2.2
FUSED_KERNELS = 2.4
PUBLISHED_MFU = {"A100": 0.57, "H100": 0.35}  # torchtitan, 8B; IBM's fms-fsdp, 7B
UNKNOWN_SIMULATOR = SimulatorTime(env_step_s=0.01)  # assumed where a plan must choose, never printed


@dataclass(frozen=True)
class Device:
    """Published dense bf16 operations, memory bandwidth and bandwidth between cards, per second."""

    flops: float
    num_bytes: float
    link_bytes: float  # bus bandwidth of NCCL's collectives within a node: NVLink, else PCIe


# by a part of the model's name; the first match counts
DEVICES = {
    name: Device(tflops * 1e12, terabytes * 1e12, gigabytes * 1e9)
    for name, tflops, terabytes, gigabytes in (
        ("B200", 2250, 8.0, 700),
        ("H200", 989, 4.8, 370),
        ("H100", 989, 3.35, 370),
        ("H800", 989, 3.35, 180),
        ("A100", 312, 2.04, 230),
        ("A800", 312, 2.04, 180),
        ("L40S", 362, 0.864, 20),
        ("L40", 181, 0.864, 20),
        ("A6000", 155, 0.768, 20),
        ("5090", 209, 1.79, 20),
        ("4090", 165, 1.008, 12),
        ("3090", 71, 0.936, 12),
        ("A40", 150, 0.696, 20),
        ("A10", 125, 0.6, 12),
        ("H20", 148, 4.0, 370),
        ("6000 Ada", 364, 0.96, 20),
        ("A30", 165, 0.933, 20),
        ("L4", 121, 0.3, 12),
        ("V100", 15.7, 0.9, 130),  # without bf16, which it computes in fp32
        ("T4", 8.1, 0.32, 10),
    )
}
UNKNOWN_DEVICE = Device(60e12, 0.3e12, 10e9)  # assumed where a plan must choose, never printed


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one training step. Example: StepTimes("A100", "A100", 340.0, 92.0, 355.0, 251.0, 0.6, 0.41, 0.38)."""

    act_model: str
    update_model: str
    simulate_s: float | None  # one env worker's share, all workers beside each other; None: its speed is unknown
    act_s: float  # one rollout worker's share, all workers beside each other
    collect_s: float  # simulation and answers, as far as they do not overlap
    update_s: float
    sync_s: float
    mfu_act: float  # achieved operations over the peak while rollout workers answer
    mfu_update: float  # forward and backward pass once, whatever is computed again; 0: passes of it are not counted
    links_s: float = 0.0  # of the update: gathering parameters and reducing gradients, mostly beside the passes
    collects_beside: bool = False  # the next batch beside the update: by rlrun.train_async, on other accelerators

    @property
    def step_s(self) -> float:
        """The whole training step, without resets and evaluations."""
        return self.overlapped_s if self.collects_beside else self.collect_s + self.update_s + self.sync_s

    @property
    def overlapped_s(self) -> float:
        """The same where the next batch is collected beside the update, as by rlrun.train_async."""
        return max(self.collect_s, self.update_s) + self.sync_s

    @property
    def known_s(self) -> float:
        """The same without the time of a simulator whose speed is unknown."""
        return self.step_s if self.simulate_s is not None else replace(self, collect_s=self.act_s).step_s


def device_of(model: str) -> Device | None:
    """Return the peaks of an accelerator by its name; None if the table lacks it."""
    return next((device for name, device in DEVICES.items() if name in model), None)


def pass_seconds(count: PassCount, rows: int, device: Device, launch_s: float) -> float:
    """Return the seconds of one pass over `rows` rows."""
    work = count.of(rows)
    products = work.flops / (PRODUCTS_SHARE * device.flops)
    rest = (work.num_bytes + work.thin_bytes) / (BANDWIDTH_SHARE * device.num_bytes)
    return math.hypot(work.num_kernels * launch_s, products + rest)


def update_pass_seconds(
    counts: PolicyCounts, share: float, rows: int, device: Device, is_compiled: bool = False
) -> float:
    """Return the seconds of one micro-batch, forward and backward.

    share: of blocks that backward recomputes. is_compiled: whether Inductor fuses the blocks.
    """
    launch_s = UPDATE_LAUNCH_S + share * (RECOMPUTE_LAUNCH_S - UPDATE_LAUNCH_S)
    work = counts.learning(share)
    if is_compiled:
        fused = {name: getattr(work, name) / FUSED_BYTES for name in ("num_bytes", "fixed_bytes")}
        work = replace(work, num_kernels=round(work.num_kernels / FUSED_KERNELS), **fused)
    return pass_seconds(work, rows, device, launch_s)


def optimizer_step_seconds(num_trained: float, device: Device) -> float:
    """Return the seconds of clipping and AdamW on the card. num_trained: parameters of one rank."""
    return max(OPTIMIZER_STEP_S, ADAM_BYTES * num_trained / (BANDWIDTH_SHARE * device.num_bytes))


def compiles(config: RunConfig, counts: PolicyCounts) -> bool:
    """Return whether actor ranks compile the policy's blocks by Inductor, if the node has what that needs."""
    return bool(counts.stacks) and config.policy.compile_backend in (None, CompileBackend.inductor)


def link_seconds(config: RunConfig, plan: Plan, counts: PolicyCounts, device: Device) -> float:
    """Return the seconds in which FSDP gathers parameters and reduces gradients for one micro-batch.

    Ranks on several nodes go at the pace of the links between them.
    """
    actor = config.actor
    actors = plan.of("actor")
    ranks = actor.ranks_of_a_copy
    is_spread = len({slot.node for slot in actors}) > 1
    pace = min(device.link_bytes, config.placement.link_gbit_per_s * 1e9 / 8) if is_spread else device.link_bytes
    read = counts.num_parameters - counts.num_unread
    sharded = counts.num_trained if actor.replicate_frozen or replicates_frozen(actor) else read
    gathers = 0 if actor.keeps_gathered else 2  # before the forward and before the backward pass
    moved = gathers * sharded * actor.param_precision.num_bytes * (ranks - 1) / ranks
    reduced = counts.num_trained * actor.reduce_precision.num_bytes * (len(actors) - 1) / len(actors)
    return (moved + reduced) / pace


def together(passes_s: float, links_s: float) -> float:
    """Return the seconds of passes beside links, which hide most of the shorter one."""
    return max(passes_s, links_s) + EXPOSED_SHARE * min(passes_s, links_s)


def has_known_devices(plan: Plan) -> bool:
    """Return whether every actor and rollout worker has an accelerator of the table, and there are env workers."""
    return all(_slowest(plan, role) is not None for role in ("actor", "rollout")) and bool(plan.of("env"))


def has_devices(plan: Plan) -> bool:
    """Return whether every actor and rollout worker has an accelerator, and there are env workers."""
    slots = [*plan.of("actor"), *plan.of("rollout")]
    return bool(plan.of("env")) and bool(slots) and all(slot.accelerators for slot in slots)


def step_times(work: Workload, plan: Plan, weight_bytes: int) -> StepTimes:
    """Return the times of a training step of a plan with devices; of unknown ones they only serve to compare plans.

    weight_bytes: one policy version, as it is sent.
    """
    config = work.config
    counts = work.counts
    rollouts = plan.of("rollout")
    actors = plan.of("actor")
    envs = plan.of("env")
    acting = _slowest(plan, "rollout") or UNKNOWN_DEVICE
    learning = _slowest(plan, "actor") or UNKNOWN_DEVICE
    chunks = config.algorithm.horizon * config.algorithm.rollout_epochs
    chunk_s = _chunk_seconds(work, plan)
    spec_s = work.simulator.resources.time(config.env)
    workers = len(envs) / len(rollouts)  # env workers that each rollout worker serves
    stages = max(1, min(config.rollout.pipeline_stages, math.floor(workers)))
    rows = config.env.num_envs / len(rollouts)
    answer_s = _sharers(plan) * pass_seconds(counts.act, math.ceil(rows / stages), acting, ACT_LAUNCH_S)
    round_s = max(stages * answer_s, answer_s + chunk_s)  # a group is answered while the others simulate
    actor = config.actor
    update_s = update_seconds(work, plan, actor.micro_batch_size, actor.activation_checkpointing)
    is_counted = ALGORITHMS.get(config.algorithm.name).small_steps is None
    passes = config.samples_per_step * config.algorithm.update_epochs if is_counted else 0
    learned = passes * counts.update.flops / len(actors)
    return StepTimes(
        act_model=_models(plan, "rollout"),
        update_model=_models(plan, "actor"),
        simulate_s=None if spec_s is None else chunks * chunk_s,
        act_s=chunks * stages * answer_s,
        collect_s=chunks * round_s,
        update_s=update_s,
        sync_s=max(way_seconds(work, plan, weight_bytes).values()) + offload_seconds(config, counts),
        mfu_act=rows * counts.act.flops / (stages * answer_s * acting.flops),
        mfu_update=learned / (update_s * learning.flops) if learned else 0.0,
        links_s=_num_passes(config, plan, actor.micro_batch_size) * link_seconds(config, plan, counts, learning),
        collects_beside=config.collects_ahead and not plan.cards_of("rollout") & plan.cards_of("actor"),
    )


def _chunk_seconds(work: Workload, plan: Plan) -> float:
    """Return the seconds in which the slowest env worker simulates a chunk; workers share the cores of their node."""
    config = work.config
    time = work.simulator.resources.time(config.env) or UNKNOWN_SIMULATOR
    envs = config.env.num_envs // config.env.num_workers
    alone_s = time.of_chunk(envs, config.policy.num_action_chunks, work.spaces.num_images)
    on_node = Counter(slot.node for slot in plan.of("env"))
    cores = {planned.node.name: planned.node.num_cpus for planned in plan.nodes}
    slowest_s = alone_s * (1 + STRAGGLING * math.sqrt(2 * math.log(config.env.num_workers)))
    return slowest_s * max(max(1.0, count / max(1, cores[node])) for node, count in on_node.items())


def _sharers(plan: Plan) -> int:
    """Return the largest number of rollout workers on one accelerator, which compute one after another."""
    return max(Counter((slot.node, slot.accelerators[0]) for slot in plan.of("rollout")).values())


def _num_passes(config: RunConfig, plan: Plan, micro_batch_size: int) -> float:
    """Return the micro-batches of a rank in a training step."""
    algorithm = config.algorithm
    ranks = len(plan.of("actor"))
    if ALGORITHMS.get(algorithm.name).small_steps is not None:
        return 0
    each = math.ceil(algorithm.global_batch_size // ranks / micro_batch_size)
    if algorithm.imitation_coef > 0:  # each pass over demonstrations takes about as long as one to learn
        each += math.ceil(config.sft.batch_size / ranks / micro_batch_size)
    return each * config.samples_per_step * algorithm.update_epochs / algorithm.global_batch_size


def update_seconds(work: Workload, plan: Plan, micro_batch_size: int, share: float) -> float:
    """Return the seconds of a training step's optimizer steps, for a plan with known devices.

    share: of blocks that the backward pass recomputes. Algorithms that train small networks only say so in their spec.
    """
    config = work.config
    counts = work.counts
    algorithm = config.algorithm
    device = _slowest(plan, "actor") or UNKNOWN_DEVICE
    small_steps = ALGORITHMS.get(algorithm.name).small_steps
    if small_steps is not None:
        return small_steps(config) * SMALL_STEP_S
    rows = min(algorithm.global_batch_size // len(plan.of("actor")), micro_batch_size)
    pass_s = update_pass_seconds(counts, share, rows, device, compiles(config, counts))
    each_s = together(pass_s, link_seconds(config, plan, counts, device))
    optimizer_steps = config.samples_per_step * algorithm.update_epochs / algorithm.global_batch_size
    on_card = 0.0, optimizer_step_seconds(counts.num_trained / config.actor.ranks_of_a_copy, device)
    host_pass_s, host_step_s = _host_seconds(config, counts) if config.actor.cpu_offload else on_card
    return _num_passes(config, plan, micro_batch_size) * (each_s + host_pass_s) + optimizer_steps * host_step_s


def _host_seconds(config: RunConfig, counts: PolicyCounts) -> tuple[float, float]:
    """Return what actor.cpu_offload adds to a micro-batch, and the seconds of an optimizer step on the cores of a rank.

    A rank's shards cross to the card before the forward and before the backward pass, and its gradients back.
    """
    ranks = config.actor.ranks_of_a_copy
    width = config.actor.param_precision.num_bytes
    crossing = (2 * counts.num_parameters + counts.num_trained) * width / ranks
    return crossing / PCIE_BYTES_S, HOST_ADAM_BYTES * counts.num_trained / ranks / HOST_ADAM_BYTES_S


def offload_seconds(config: RunConfig, counts: PolicyCounts) -> float:
    """Return the seconds in which placement.offload moves actor and rollout workers off the accelerators and back."""
    if not config.placement.offload:
        return 0.0
    state = actor_memory(config, counts).resident_bytes + counts.num_parameters * config.rollout.precision.num_bytes
    return 2 * state / PCIE_BYTES_S


def way_seconds(work: Workload, plan: Plan, weight_bytes: int) -> dict[WeightTransport, float]:
    """Return the seconds of one version by each way of the plan; from rank 0 all its receivers take equally long.

    The bytes cross an accelerator, or the memory of the node of rank 0 and the links to others.
    """
    ways = work.ways(plan)
    found = {way.transport: weight_bytes / DEVICE_MEMORY_BYTES_S for way in ways}
    source = plan.of("actor")[0].node
    rollouts = plan.of("rollout")
    from_host = [way for way in ways if way.transport is not WeightTransport.device]
    others = {rollouts[way.rollout].node for way in from_host} - {source}
    over_links = len(others) * weight_bytes * 8 / (work.config.placement.link_gbit_per_s * 1e9)
    return found | {way.transport: 2 * weight_bytes / SHARED_MEMORY_BYTES_S + over_links for way in from_host}


def _slowest(plan: Plan, role: str) -> Device | None:
    slots = plan.of(role)
    devices = [device_of(slot.accelerator_model) for slot in slots]
    known = [device for device in devices if device is not None]
    return min(known, key=lambda one: one.flops) if known and len(known) == len(slots) else None


def _models(plan: Plan, role: str) -> str:
    return ", ".join(sorted({slot.accelerator_model for slot in plan.of(role)}))
