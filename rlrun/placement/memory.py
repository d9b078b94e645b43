"""Estimate of the device memory of one actor rank: its parts and the peak. Pure arithmetic.

Weights, gradients and optimizer state follow from the numbers of parameters, activations from what a pass on the meta
device held (`PolicyCounts`). tests/unit/actor/test_memory_estimate.py compares it with real updates.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import (
    ClusterKind,
    OptimizerKind,
    RolloutBackendKind,
    RunConfig,
    WeightTransport,
)
from rlrun.placement.plan import Plan, Slot
from rlrun.placement.workload import Workload
from rlrun.policies.counts import PolicyCounts, replicates_frozen, unit_limit

_BUCKETS_IN_FLIGHT = 2  # one is sent while the next one is packed
BASE_BYTES = 600_000_000  # of a process that has imported torch and transformers
RESERVE = 0.1  # share of a node's memory for other processes
_UNITS_AT_ONCE = 2  # the one that computes and the next one, which is gathered at the same time
_NUMBERS_PER_SCALE = 256  # 8-bit moments share one float32 scale per 256 numbers


@dataclass(frozen=True)
class WeightBuffers:
    """Bytes by node, for nodes that need any.

    Example: a 7 B policy in bf16, actor and rollout workers on one node: host {"train-0": 15_000_000_000}, store {}.
    """

    host: dict[str, int]  # reused for every version, except in one process
    store: dict[str, int]  # only while a version is in transit


def weight_buffers(work: Workload, plan: Plan, weight_bytes: int) -> WeightBuffers:
    """Return the buffers for one policy version of `weight_bytes`, as it is sent."""
    if not plan.of("actor"):
        return WeightBuffers({}, {})
    config = work.config
    transports = {way.rollout: way.transport for way in work.ways(plan)}
    from_host = [slot for slot in plan.of("rollout") if transports[slot.rank] is not WeightTransport.device]
    actor = plan.of("actor")[0].node
    rollouts = [slot.node for slot in from_host]
    in_flight = min(weight_bytes, _BUCKETS_IN_FLIGHT * config.weight_sync.bucket_bytes)
    is_kept = config.placement.offload  # until rollout workers have their accelerators
    received = weight_bytes if is_kept or config.rollout.backend is RolloutBackendKind.sglang else in_flight
    is_on_devices = "actor/0" in device_bytes(work, plan)
    if config.cluster.kind is ClusterKind.local:
        return WeightBuffers({actor: weight_bytes}, {})
    if not rollouts:
        return WeightBuffers({}, {})
    if config.weight_sync.transport is WeightTransport.collective:
        host: dict[str, int] = defaultdict(int, {actor: 0 if is_on_devices else in_flight})
        for node in rollouts:  # each rollout worker has its own buffers
            host[node] += 0 if is_on_devices and received == in_flight else received
        return WeightBuffers(dict(host), {})
    if set(rollouts) == {actor}:  # one node: all workers share the actor's memory
        return WeightBuffers({actor: weight_bytes}, {})
    if is_kept:
        copies = {node: count * weight_bytes for node, count in Counter(rollouts).items()}
        return WeightBuffers(copies, {actor: in_flight} | dict.fromkeys(rollouts, in_flight))
    return WeightBuffers({}, {actor: in_flight} | dict.fromkeys(rollouts, received))


def device_bytes(work: Workload, plan: Plan) -> dict[str, int]:
    """Return the bytes of buckets that workers hold on their first accelerator, by name.

    These are actor rank 0 and the rollout workers of a collective over NCCL, and rollout workers whose device memory an
    actor rank writes.
    """
    config = work.config
    ways = work.ways(plan)
    near = {f"rollout/{way.rollout}" for way in ways if way.transport is WeightTransport.device}
    is_nccl = config.weight_sync.transport is WeightTransport.collective and plan.sync_backend.value == "nccl"
    holders = {"actor/0"} | {slot.name for slot in plan.of("rollout")} if is_nccl else near
    return dict.fromkeys(holders, _BUCKETS_IN_FLIGHT * config.weight_sync.bucket_bytes)


def load_bytes(config: RunConfig, counts: PolicyCounts) -> dict[str, int]:
    """Map each role to the peak host memory of one worker while it loads.

    An actor rank reads its shards from the files, tensor by tensor; a rollout worker reads a whole copy, each in its
    own precision. Mapped files do not count, since the kernel can drop their pages. Env workers load no policy.
    """
    return {
        "actor": BASE_BYTES + _weights(config, counts),
        "rollout": BASE_BYTES + config.rollout.precision.num_bytes * counts.num_parameters,
        "env": 0,
    }


def _weights(config: RunConfig, counts: PolicyCounts) -> int:
    """Return the bytes of one rank's shards, and of the frozen weights that are no shards."""
    actor = config.actor
    ranks = config.actor.ranks_of_a_copy
    frozen = counts.num_frozen * actor.param_precision.num_bytes
    trained = counts.num_trained * actor.optimizer_precision.num_bytes // ranks
    return trained + (frozen if replicates_frozen(actor) else frozen // ranks)


def waves(slots: tuple[Slot, ...], bytes_per_worker: int, free_bytes: Mapping[str, int]) -> list[tuple[Slot, ...]]:
    """Divide workers into waves that load one after another.

    slots: workers of one role. free_bytes: node -> memory for loading; a missing node has no limit. In every wave each
    node loads as many workers as fit, but at least one: the doctor checks that one fits.

    Example: four workers of 30 GB on a node with 70 GB free load in two waves of two.
    """
    if bytes_per_worker <= 0:
        return [slots]
    waiting = list(slots)
    found: list[tuple[Slot, ...]] = []
    while waiting:
        room = {slot.node: max(1, free_bytes.get(slot.node, 2**62) // bytes_per_worker) for slot in waiting}
        wave = []
        for slot in waiting:
            if room[slot.node] > 0:
                room[slot.node] -= 1
                wave.append(slot)
        found.append(tuple(wave))
        taken = {slot.rank for slot in wave}
        waiting = [slot for slot in waiting if slot.rank not in taken]
    return found


def loading_room(plan: Plan, free_bytes: Mapping[str, int] | None = None) -> dict[str, int]:
    """Map each node to the bytes available for loading, according to the inventory.

    free_bytes: worker -> free memory that it measured on its node, an upper limit for that node.
    """
    room = {planned.node.name: int((1 - RESERVE) * planned.node.memory_bytes) for planned in plan.nodes}
    for slot in plan.slots:
        measured = (free_bytes or {}).get(slot.name)
        if measured is not None:
            room[slot.node] = min(room[slot.node], int((1 - RESERVE) * measured))
    return room


@dataclass(frozen=True)
class ActorMemory:
    """Bytes. Example for a 7B, full_shard over 8 ranks, bf16 with fp32 state: weights 3.8 GB, optimizer 7.5 GB."""

    weights: int  # shards, in the optimizer's precision where parameters train
    optimizer: int  # two moments of the trained parameters
    reference: int  # the initial policy, for the KL penalty, in the precision of computing
    learned: int  # the policy that learns, where another one acts
    gradients: int
    gathered: int  # gathered units while they compute, or the whole policy, and gradients being reduced
    activations: int

    @property
    def resident_bytes(self) -> int:
        """Bytes held between updates."""
        return self.weights + self.optimizer + self.reference + self.learned

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes held at one time."""
        return self.resident_bytes + self.gradients + self.gathered + self.activations

    def parts(self) -> dict[str, int]:
        """Return the non-zero parts by name."""
        return {name: amount for name, amount in vars(self).items() if amount}


def actor_memory(config: RunConfig, counts: PolicyCounts) -> ActorMemory:
    """Estimate the memory of one rank during an update.

    With actor.cpu_offload the device holds only the blocks that compute.
    """
    actor = config.actor
    master = actor.optimizer_precision.num_bytes
    compute = actor.param_precision.num_bytes
    trained = counts.num_trained
    ranks = actor.ranks_of_a_copy
    gradients = _gradients(config, trained, master, ranks)
    activations = activation_bytes(config, counts)
    if num_micro_batches(config) == 1:  # gradients replace activations during the backward pass
        gradients = max(0, gradients - activations)
    has_slow_policy = ALGORITHMS.get(config.algorithm.name).has_slow_policy(config.algorithm)
    return ActorMemory(
        weights=0 if actor.cpu_offload else _weights(config, counts),
        optimizer=0 if actor.cpu_offload else _moments(config, trained) // ranks,
        reference=trained * compute // ranks if config.algorithm.kl_coef > 0 and not actor.cpu_offload else 0,
        learned=trained * master // ranks if has_slow_policy and not actor.cpu_offload else 0,
        gradients=0 if actor.cpu_offload else gradients,
        gathered=_gathered(config, counts),
        activations=activations,
    )


def _moments(config: RunConfig, trained: int) -> int:
    """Return the bytes of both moments over all ranks. Ignores that small tensors keep more than 8 bits."""
    number: float = config.actor.optimizer_precision.num_bytes
    if config.actor.optimizer is OptimizerKind.adamw_8bit:
        number = 1 + 4 / _NUMBERS_PER_SCALE
    return int(2 * trained * number)


def version_bytes(config: RunConfig, counts: PolicyCounts) -> tuple[int, int]:
    """Return the bytes of the first policy version that is sent to a rollout worker, and of each later one.

    They differ if adapters are sent: then the first one has the weights that these change as well.
    """
    width = config.rollout.precision.num_bytes
    if not config.are_adapters_apart:
        return counts.num_sent * width, counts.num_sent * width
    later = counts.num_adapters * config.actor.optimizer_precision.num_bytes + counts.num_trained_whole * width
    return later + base_bytes(config, counts), later


def base_bytes(config: RunConfig, counts: PolicyCounts) -> int:
    """Return the bytes of a rollout worker's copy of the weights under the adapters."""
    num_adapted = counts.num_sent - counts.num_trained_whole
    return num_adapted * config.actor.param_precision.num_bytes if config.are_adapters_apart else 0


def num_micro_batches(config: RunConfig) -> int:
    """Return the number of forward passes of one rank per optimizer step."""
    return math.ceil(config.algorithm.global_batch_size / config.actor.num_workers / config.actor.micro_batch_size)


def _gradients(config: RunConfig, trained: int, width: int, ranks: int) -> int:
    """Return the bytes of gradient shards, or of whole gradients if they are reduced only after all micro-batches."""
    shards = trained * width // ranks
    if config.actor.keeps_gathered and num_micro_batches(config) > 1:
        return max(shards, trained * config.actor.reduce_precision.num_bytes)
    return shards


def _gathered(config: RunConfig, counts: PolicyCounts) -> int:
    """Return the bytes of parameters that FSDP gathers, and of gradients that it reduces."""
    compute = config.actor.param_precision.num_bytes
    reduced = config.actor.reduce_precision.num_bytes
    if replicates_frozen(config.actor):
        sharded = counts.num_trained
        never_gathered = 0
        stacks = [stack.trained_parameters for stack in counts.stacks]
    else:
        sharded = counts.num_trained + counts.num_frozen
        never_gathered = counts.num_unread
        stacks = [stack.block_parameters for stack in counts.stacks]
    unit = _largest_unit(stacks, compute)
    # a unit's gradients and their reduction buffer
    in_flight = int(unit * counts.num_trained / max(1, sharded) * (compute + reduced))
    if config.actor.keeps_gathered:
        return sharded * compute + in_flight
    in_blocks = sum(map(sum, stacks))
    root = sharded - in_blocks - never_gathered
    return (root + min(_UNITS_AT_ONCE * unit, in_blocks)) * compute + in_flight


def _largest_unit(stacks: Sequence[Sequence[int]], width: int) -> int:
    """Return the parameters of the largest FSDP unit besides the root.

    stacks: parameters of each block that FSDP holds. width: bytes of a gathered parameter.
    """
    limit = unit_limit([number * width for stack in stacks for number in stack])
    largest = 0
    for stack in stacks:
        unit = 0
        for number in stack:
            unit = unit + number if (unit + number) * width <= limit else number
            largest = max(largest, unit)
    return largest


def activation_bytes(config: RunConfig, counts: PolicyCounts) -> int:
    """Return the bytes of tensors that one micro-batch holds for its backward pass, with temporaries."""
    rows = min(config.actor.micro_batch_size, config.algorithm.global_batch_size // config.actor.num_workers)
    return round(counts.learning(config.actor.activation_checkpointing).of(rows).saved_bytes)
