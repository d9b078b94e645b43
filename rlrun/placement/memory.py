"""Estimate of the device memory of one actor rank: its parts and the peak. Pure arithmetic.

Weights, gradients and optimizer state follow from the numbers of parameters, activations from what a pass on the meta
device held (`PolicyCounts`). tests/unit/actor/test_memory_estimate.py compares it with real updates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.schema import (
    ClusterKind,
    OptimizerKind,
    Precision,
    RolloutBackendKind,
    RunConfig,
    ShardingStrategy,
    WeightTransport,
)
from rlrun.placement.plan import Plan, Slot
from rlrun.placement.policy_counts import policy_counts
from rlrun.policies.counts import PolicyCounts, unit_limit
from rlrun.policies.folders import base_of, has_only_adapters, parameters_in


def count_parameters(config: RunConfig) -> int:
    """Parameters of `policy.path`, from its safetensors headers; else those that a new policy will have."""
    if config.policy.path is not None:
        folder = Path(config.policy.path)
        found = parameters_in(base_of(folder) if has_only_adapters(folder) else folder)
        if found:
            return found
    return policy_counts(config).num_parameters


_BUCKETS_IN_FLIGHT = 2  # one is sent while the next one is packed


@dataclass(frozen=True)
class WeightBuffers:
    """Bytes by node, for nodes that need any.

    Example: a 7 B policy in bf16, actor and rollout workers on one node: host {"train-0": 15_000_000_000}, store {}.
    """

    host: dict[str, int]  # reused for every version, except in one process
    store: dict[str, int]  # only while a version is in transit


def weight_buffers(config: RunConfig, plan: Plan, weight_bytes: int) -> WeightBuffers:
    """Return the buffers for one policy version of `weight_bytes`, as it is sent."""
    if not plan.of("actor"):
        return WeightBuffers({}, {})
    actor, rollouts = plan.of("actor")[0].node, [slot.node for slot in plan.of("rollout")]
    in_flight = min(weight_bytes, _BUCKETS_IN_FLIGHT * config.weight_sync.bucket_bytes)
    received = weight_bytes if config.rollout.backend is RolloutBackendKind.sglang else in_flight
    is_on_devices = bool(device_bytes(config, plan))
    if config.cluster.kind is ClusterKind.local:
        return WeightBuffers({actor: weight_bytes}, {})
    if config.weight_sync.transport is WeightTransport.collective:
        host: dict[str, int] = defaultdict(int, {actor: 0 if is_on_devices else in_flight})
        for node in rollouts:  # each rollout worker has its own buffers
            host[node] += 0 if is_on_devices and received == in_flight else received
        return WeightBuffers(dict(host), {})
    if set(rollouts) == {actor}:  # one node: all workers share the actor's memory
        return WeightBuffers({actor: weight_bytes}, {})
    return WeightBuffers({}, {actor: in_flight} | dict.fromkeys(rollouts, received))


def device_bytes(config: RunConfig, plan: Plan) -> int:
    """Return the bytes of buckets that actor rank 0 and each rollout worker hold on an accelerator; 0 without NCCL."""
    is_nccl = config.weight_sync.transport is WeightTransport.collective and plan.sync_backend.value == "nccl"
    return _BUCKETS_IN_FLIGHT * config.weight_sync.bucket_bytes if is_nccl else 0


BASE_BYTES = 600_000_000  # of a process that has imported torch and transformers
NUM_BYTES = {Precision.fp32: 4, Precision.bf16: 2}
RESERVE = 0.1  # share of a node's memory for other processes


def load_bytes(config: RunConfig, num_parameters: int) -> dict[str, int]:
    """Map each role to the peak host memory of one worker while it loads.

    An actor rank reads its shards from the files, tensor by tensor; a rollout worker reads a whole copy, each in its
    own precision. Mapped files do not count, since the kernel can drop their pages. Env workers load no policy.
    """
    shards = num_parameters * NUM_BYTES[config.actor.optimizer_precision] // ranks_of_a_copy(config)
    return {
        "actor": BASE_BYTES + shards,
        "rollout": BASE_BYTES + NUM_BYTES[config.rollout.precision] * num_parameters,
        "env": 0,
    }


def ranks_of_a_copy(config: RunConfig) -> int:
    """Return the number of actor ranks that share one copy of the parameters."""
    actor = config.actor
    if actor.sharding is ShardingStrategy.no_shard:
        return 1
    if actor.sharding is ShardingStrategy.hybrid_shard:
        return actor.fsdp_size or actor.num_workers
    return actor.num_workers


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


_UNITS_AT_ONCE = 2  # the one that computes and the next one, which is gathered at the same time
_NUMBERS_PER_SCALE = 256  # 8-bit moments share one float32 scale per 256 numbers


@dataclass(frozen=True)
class ActorMemory:
    """Bytes. Example for a 7B, full_shard over 8 ranks, bf16 with fp32 state: weights 3.8 GB, optimizer 7.5 GB."""

    weights: int  # shards, in the optimizer's precision where parameters train
    optimizer: int  # two moments of the trained parameters
    reference: int  # the initial policy, for the KL penalty, in the precision of computing
    gradients: int
    gathered: int  # gathered units while they compute, or the whole policy, and gradients being reduced
    activations: int

    @property
    def resident_bytes(self) -> int:
        """Bytes held between updates."""
        return self.weights + self.optimizer + self.reference

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
    master, compute = NUM_BYTES[actor.optimizer_precision], NUM_BYTES[actor.param_precision]
    trained, frozen = counts.num_trained, counts.num_frozen
    ranks = ranks_of_a_copy(config)
    weights = (trained * master + frozen * compute) // ranks
    gradients = _gradients(config, trained, master, ranks)
    activations = activation_bytes(config, counts)
    if num_micro_batches(config) == 1:  # gradients replace activations during the backward pass
        gradients = max(0, gradients - activations)
    return ActorMemory(
        weights=0 if actor.cpu_offload else weights,
        optimizer=0 if actor.cpu_offload else _moments(config, trained) // ranks,
        reference=trained * compute // ranks if config.algorithm.kl_coef > 0 and not actor.cpu_offload else 0,
        gradients=0 if actor.cpu_offload else gradients,
        gathered=_gathered(config, counts),
        activations=activations,
    )


def _moments(config: RunConfig, trained: int) -> int:
    """Return the bytes of both moments over all ranks. Ignores that small tensors keep more than 8 bits."""
    number: float = NUM_BYTES[config.actor.optimizer_precision]
    if config.actor.optimizer is OptimizerKind.adamw_8bit:
        number = 1 + 4 / _NUMBERS_PER_SCALE
    return int(2 * trained * number)


def num_micro_batches(config: RunConfig) -> int:
    """Return the number of forward passes of one rank per optimizer step."""
    return math.ceil(config.algorithm.global_batch_size / config.actor.num_workers / config.actor.micro_batch_size)


def _keeps_gathered(config: RunConfig) -> bool:
    return config.actor.sharding in (ShardingStrategy.shard_grad_op, ShardingStrategy.no_shard)


def _gradients(config: RunConfig, trained: int, width: int, ranks: int) -> int:
    """Return the bytes of gradient shards, or of whole gradients if they are reduced only after all micro-batches."""
    shards = trained * width // ranks
    if _keeps_gathered(config) and num_micro_batches(config) > 1:
        return max(shards, trained * NUM_BYTES[config.actor.reduce_precision])
    return shards


def _gathered(config: RunConfig, counts: PolicyCounts) -> int:
    compute, reduced = NUM_BYTES[config.actor.param_precision], NUM_BYTES[config.actor.reduce_precision]
    number, unit = counts.num_trained + counts.num_frozen, _largest_unit(counts, compute)
    # a unit's gradients and their reduction buffer
    in_flight = int(unit * counts.num_trained / max(1, number) * (compute + reduced))
    if _keeps_gathered(config):
        return number * compute + in_flight
    of_blocks = sum(sum(stack.block_parameters) for stack in counts.stacks)
    root = number - of_blocks - counts.num_unread
    return (root + min(_UNITS_AT_ONCE * unit, of_blocks)) * compute + in_flight


def _largest_unit(counts: PolicyCounts, width: int) -> int:
    """Return the parameters of the largest FSDP unit besides the root; width: bytes of a gathered parameter."""
    blocks = [number * width for stack in counts.stacks for number in stack.block_parameters]
    limit, largest = unit_limit(blocks), 0
    for stack in counts.stacks:
        unit = 0
        for number in stack.block_parameters:
            unit = unit + number if (unit + number) * width <= limit else number
            largest = max(largest, unit)
    return largest


def activation_bytes(config: RunConfig, counts: PolicyCounts) -> int:
    """Return the bytes of tensors that one micro-batch holds for its backward pass, with temporaries."""
    rows = min(config.actor.micro_batch_size, config.algorithm.global_batch_size // config.actor.num_workers)
    work = counts.recompute if config.actor.activation_checkpointing else counts.update
    return round(work.of(rows).saved_bytes)
