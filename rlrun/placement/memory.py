"""Estimate of the device memory of one actor rank: its parts and the peak. Pure arithmetic.

Weights, gradients and optimizer state follow from the parameter counts, activations from the tensors that each kind of
block saves for its backward pass. tests/unit/actor/test_memory_estimate.py compares it with real updates.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.schema import (
    ActorConfig,
    ClusterKind,
    OptimizerKind,
    Precision,
    RolloutBackendKind,
    RunConfig,
    WeightTransport,
)
from rlrun.config.simulator_spec import simulator_spec
from rlrun.placement.plan import Plan, Slot
from rlrun.policies.folders import base_of, has_only_adapters, parameters_in, readable, spec_of
from rlrun.policies.size import PolicySize, Stack, replicates_frozen, unit_limit
from rlrun.policies.spec import CONFIG_FILE, counted, policy_spec

COMPARE = "Compare it with the config.json that its author published: a value was changed, or rlrun lacks this variant."


def policy_size(config: RunConfig, num_parameters: int) -> PolicySize:
    """num_parameters: as `count_parameters` gives it."""
    spec, spaces = policy_spec(config), simulator_spec(config.env).planned_spaces(config.env)
    if spec.size is not None:
        size = spec.size
        if config.policy.path is None:
            return size(config, spaces, num_parameters)
        folder = Path(config.policy.path)
        spec_of(folder, config)  # another kind's config.json is told as such
        return readable(folder / CONFIG_FILE, lambda: size(config, spaces, num_parameters), remedy=COMPARE)
    num_pixels = spaces.num_images * config.env.image_size**2 * 3
    return PolicySize(num_parameters, (), num_pixels, config.policy.num_action_chunks * spaces.num_actions)


def count_parameters(config: RunConfig) -> int:
    """Parameters of `policy.path`, from its safetensors headers; else those that a new policy will have."""
    if config.policy.path is not None:
        folder = Path(config.policy.path)
        found = parameters_in(base_of(folder) if has_only_adapters(folder) else folder)
        if found:
            return found
    spec, spaces = policy_spec(config), simulator_spec(config.env).planned_spaces(config.env)
    return spec.num_parameters(config, spaces) if spec.num_parameters is not None else counted(spec, config, spaces)


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
    is_kept = config.placement.offload  # until rollout workers have their accelerators
    received = weight_bytes if is_kept or config.rollout.backend is RolloutBackendKind.sglang else in_flight
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
    if is_kept:
        copies = {node: count * weight_bytes for node, count in Counter(rollouts).items()}
        return WeightBuffers(copies, {actor: in_flight} | dict.fromkeys(rollouts, in_flight))
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
    return {
        "actor": BASE_BYTES + _weights(config, *trained_and_frozen(config, policy_size(config, num_parameters))),
        "rollout": BASE_BYTES + NUM_BYTES[config.rollout.precision] * num_parameters,
        "env": 0,
    }


def _weights(config: RunConfig, trained: int, frozen: int) -> int:
    """Return the bytes of one rank's shards, and of the frozen weights that are no shards."""
    actor, ranks = config.actor, config.actor.ranks_of_a_copy
    compute = NUM_BYTES[actor.param_precision]
    return trained * NUM_BYTES[actor.optimizer_precision] // ranks + _part_of_frozen(actor, frozen * compute)


def _part_of_frozen(actor: ActorConfig, amount: int) -> int:
    return amount if replicates_frozen(actor) else amount // actor.ranks_of_a_copy


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
_LOGIT_COPIES = 6  # float32 numbers per bin and action token: logits, their log-softmax, entropy


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


def actor_memory(config: RunConfig, size: PolicySize) -> ActorMemory:
    """Estimate the memory of one rank during an update.

    With actor.cpu_offload the device holds only the blocks that compute.
    """
    actor = config.actor
    master, compute = NUM_BYTES[actor.optimizer_precision], NUM_BYTES[actor.param_precision]
    trained, frozen = trained_and_frozen(config, size)
    ranks = actor.ranks_of_a_copy
    gradients = _gradients(config, trained, master, ranks)
    activations = activation_bytes(config, size)
    if num_micro_batches(config) == 1:  # gradients replace activations during the backward pass
        gradients = max(0, gradients - activations)
    return ActorMemory(
        weights=0 if actor.cpu_offload else _weights(config, trained, frozen),
        optimizer=0 if actor.cpu_offload else _moments(config, trained) // ranks,
        reference=trained * compute // ranks if config.algorithm.kl_coef > 0 and not actor.cpu_offload else 0,
        gradients=0 if actor.cpu_offload else gradients,
        gathered=_gathered(config, size, trained, frozen),
        activations=activations,
    )


def _moments(config: RunConfig, trained: int) -> int:
    """Return the bytes of both moments over all ranks. Ignores that small tensors keep more than 8 bits."""
    number: float = NUM_BYTES[config.actor.optimizer_precision]
    if config.actor.optimizer is OptimizerKind.adamw_8bit:
        number = 1 + 4 / _NUMBERS_PER_SCALE
    return int(2 * trained * number)


def trained_and_frozen(config: RunConfig, size: PolicySize) -> tuple[int, int]:
    """Return the numbers of trained and frozen parameters.

    With LoRA everything but adapters and small parts is frozen.
    """
    lora = config.actor.lora
    if lora.rank == 0:
        return size.all_parameters - size.unchanging_parameters, size.unchanging_parameters
    whole = size.whole_parameters(lora)
    return size.adapter_parameters(lora) + whole, size.all_parameters - whole


def sent_parameters(config: RunConfig, size: PolicySize) -> int:
    """Return the number of a rollout worker's parameters that change, merged with their adapters if there are any."""
    lora = config.actor.lora
    if lora.rank == 0:
        return size.all_parameters - size.unchanging_parameters
    adapted = [stack for stack in size.stacks if stack.part in (lora.targets or ())]
    return sum(stack.num_layers * stack.matrix_parameters for stack in adapted) + size.whole_parameters(lora)


def version_bytes(config: RunConfig, size: PolicySize) -> tuple[int, int]:
    """Return the bytes of the first policy version that is sent to a rollout worker, and of each later one.

    They differ if adapters are sent: then the first one has the weights that these change as well.
    """
    width, lora = NUM_BYTES[config.rollout.precision], config.actor.lora
    merged = (size.num_parameters - size.unchanging_parameters) * width
    if not config.are_adapters_apart:
        return merged, merged
    adapters = size.adapter_parameters(lora) * NUM_BYTES[config.actor.optimizer_precision]
    later = adapters + size.whole_parameters(lora) * width
    return later + base_bytes(config, size), later


def base_bytes(config: RunConfig, size: PolicySize) -> int:
    """Return the bytes of a rollout worker's copy of the weights under the adapters."""
    num_adapted = sent_parameters(config, size) - size.whole_parameters(config.actor.lora)
    return num_adapted * NUM_BYTES[config.actor.param_precision] if config.are_adapters_apart else 0


def num_micro_batches(config: RunConfig) -> int:
    """Return the number of forward passes of one rank per optimizer step."""
    return math.ceil(config.algorithm.global_batch_size / config.actor.num_workers / config.actor.micro_batch_size)


def _gradients(config: RunConfig, trained: int, width: int, ranks: int) -> int:
    """Return the bytes of gradient shards, or of whole gradients if they are reduced only after all micro-batches."""
    shards = trained * width // ranks
    if config.actor.keeps_gathered and num_micro_batches(config) > 1:
        return max(shards, trained * NUM_BYTES[config.actor.reduce_precision])
    return shards


def _gathered(config: RunConfig, size: PolicySize, trained: int, frozen: int) -> int:
    """Return the bytes of parameters that FSDP gathers, and of gradients that it reduces."""
    compute, reduced = NUM_BYTES[config.actor.param_precision], NUM_BYTES[config.actor.reduce_precision]
    sharded = trained if replicates_frozen(config.actor) else trained + frozen
    blocks = _sharded_blocks(config, size)
    unit = _largest_unit(blocks, compute)
    in_flight = int(unit * trained / sharded * (compute + reduced))  # a unit's gradients and their reduction buffer
    if config.actor.keeps_gathered:
        return sharded * compute + in_flight
    in_blocks = sum(num_layers * each for num_layers, each in blocks)
    never_gathered = 0 if replicates_frozen(config.actor) else size.dead_parameters
    root = sharded - in_blocks - never_gathered
    return (root + min(_UNITS_AT_ONCE * unit, in_blocks)) * compute + in_flight


def _sharded_blocks(config: RunConfig, size: PolicySize) -> list[tuple[int, int]]:
    """Return (number of blocks, parameters of each that FSDP holds) for the stacks with such parameters."""
    actor, lora = config.actor, config.actor.lora
    if not replicates_frozen(actor):
        return [(stack.num_layers, stack.block_parameters) for stack in size.stacks]
    if lora.rank:
        adapted = [stack for stack in size.stacks if stack.part in (lora.targets or ())]
        return [(stack.num_layers, stack.adapter_parameters(lora.rank)) for stack in adapted]
    if size.trains_heads_only:
        return []
    return [(stack.num_layers, stack.block_parameters) for stack in size.stacks if stack.is_trained]


def _largest_unit(blocks: list[tuple[int, int]], width: int) -> int:
    """Return the parameters of the largest FSDP unit besides the root; width: bytes of a gathered parameter."""
    limit = unit_limit([each * width for _, each in blocks]) // width
    return max((min(num_layers, limit // each) * each for num_layers, each in blocks), default=0)


def activation_bytes(config: RunConfig, size: PolicySize) -> int:
    """Return the bytes of tensors that one micro-batch saves for its backward pass, with temporaries."""
    rows = min(config.actor.micro_batch_size, config.algorithm.global_batch_size // config.actor.num_workers)
    width = NUM_BYTES[config.actor.param_precision]
    if size.trains_heads_only:
        return 0
    if not size.stacks:
        return rows * width * (size.num_pixels + 8 * size.num_parameters // 1000)
    blocks = [(stack, _block_bytes(config, stack, width)) for stack in size.stacks]
    share, kept, passing = config.actor.activation_checkpointing, 0, [0]
    for stack, block in blocks:
        num_checkpointed = math.floor(stack.num_layers * share) if stack.is_trained else 0
        if stack.is_trained:
            kept += num_checkpointed * stack.num_tokens * stack.width * width
            kept += (stack.num_layers - num_checkpointed) * block
        if num_checkpointed or not stack.is_trained:
            passing.append(block)  # one block at a time is recomputed, or computes without gradients
    return rows * (kept + max(passing) + _between_stacks(size, width))


def _block_bytes(config: RunConfig, stack: Stack, width: int) -> int:
    """Return the bytes that one block saves for one row, added up in the order of the forward pass.

    W: width, I: inner width of the MLP.
    """
    W, I = stack.width, stack.inner
    if not stack.is_gated:
        # norm: input and output; qkv; attention's output; second norm: two; MLP: two; layer scales: their inputs
        scales = 2 * W if stack.has_layer_scale else 0
        return stack.num_tokens * width * (8 * W + 2 * I + scales)
    # Llama's norm computes in float32 and saves the residual, the normalized tensor and the output
    is_weight_trained = config.actor.lora.rank == 0
    norm = 4 * W + width * W + (width * W if is_weight_trained else 0)
    # q, k, v and attention's output; MLP: gate, its SiLU, up, their product
    attention = 2 * (stack.query_width or W) + 2 * (stack.key_width or W)
    return stack.num_tokens * (2 * norm + width * (attention + 4 * I))


def _between_stacks(size: PolicySize, width: int) -> int:
    """Return the bytes of pixels, projector, embeddings, the last norm, and logits of one row."""
    llm, vision = size.language_model, size.towers
    if not llm.is_trained:
        return size.num_pixels * (4 + width)
    patches = min(stack.num_tokens for stack in vision)
    features = sum(stack.width for stack in vision)
    projector = patches * width * (2 * features + 2 * 4 * features + 3 * llm.width)
    embeddings = llm.num_tokens * llm.width * (4 + 3 * width)
    logits = size.num_action_tokens * size.num_bins * 4 * _LOGIT_COPIES
    return size.num_pixels * (4 + width) + projector + embeddings + logits
