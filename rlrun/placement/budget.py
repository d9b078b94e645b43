"""The budget of a plan in bytes: device memory, host memory while loading, object stores, and links.

Device memory is estimated by rlrun/placement/memory.py. A part of each accelerator is held back for contexts,
workspaces of libraries, buffers of NCCL and fragments, which are not counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import OptimizerKind, RolloutBackendKind, RunConfig
from rlrun.config.simulator_spec import num_simulators
from rlrun.placement.inventory import GIGABYTE, Accelerator, Inventory, NodeInfo
from rlrun.placement.memory import (
    actor_memory,
    base_bytes,
    device_bytes,
    load_bytes,
    loading_room,
    version_bytes,
    waves,
    weight_buffers,
)
from rlrun.placement.plan import Plan, refused
from rlrun.placement.step_cost import LinkBudget, StoreBudget, links, step_bytes, stores
from rlrun.placement.step_time import StepTimes, has_known_devices, step_times
from rlrun.placement.workload import Workload
from rlrun.policies.counts import PolicyCounts

# of every accelerator
HELD_BACK_BYTES = 3 * GIGABYTE
HELD_BACK_SHARE = 0.05
_BASE = "copy of the base"
_BUCKETS = "weight buckets"
_KEYS = {  # role -> keys that its memory depends on
    "actor": ("actor.micro_batch_size", "actor.lora.rank", "actor.num_workers"),
    "rollout": ("rollout.precision", "rollout.num_workers"),
    "env": ("env.num_envs", "env.num_workers"),
}


@dataclass(frozen=True)
class Need:
    """The bytes that one worker holds on one accelerator. Example: Need("actor/0", "optimizer", 30_000_000_000)."""

    worker: str
    part: str  # a field of ActorMemory, policy copy, weight buckets, simulator
    num_bytes: int


@dataclass(frozen=True)
class AcceleratorBudget:
    """The use of one accelerator by its workers."""

    node: str
    index: int
    device: Accelerator
    needs: tuple[Need, ...]
    is_offloaded: bool  # placement.offload: actor and rollout workers are there one after the other

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of the accelerator; None: unknown, and not compared."""
        return self.device.memory_bytes

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes held at one time."""
        actor, rollout = (
            sum(need.num_bytes for need in self.needs if need.worker.startswith(role))
            for role in ("actor/", "rollout/")
        )
        simulators = sum(need.num_bytes for need in self.needs) - actor - rollout  # stay where they are
        return simulators + (max(actor, rollout) if self.is_offloaded else actor + rollout)

    @property
    def held_back_bytes(self) -> int:
        """Bytes that the plan gives to no worker."""
        return HELD_BACK_BYTES + round(HELD_BACK_SHARE * (self.memory_bytes or 0))

    @property
    def short_bytes(self) -> int:
        """Bytes that are missing; not above 0 if there is room, or if the memory is unknown."""
        return 0 if self.memory_bytes is None else self.peak_bytes + self.held_back_bytes - self.memory_bytes

    def of_workers(self) -> dict[str, int]:
        """Bytes per worker, in order."""
        sums: dict[str, int] = defaultdict(int)
        for need in self.needs:
            sums[need.worker] += need.num_bytes
        return dict(sums)


@dataclass(frozen=True)
class HostBudget:
    """Host memory of one node for models.

    Example: HostBudget(NodeInfo("train-0", …), 185_000_000_000, 2, 0, 15_000_000_000, 0, 0, 0).
    """

    node: NodeInfo
    peak_bytes: int  # of the largest wave of loading
    num_waves: int
    offloaded_bytes: int  # buffers for offloaded tensors; reused
    weight_bytes: int  # buffers for weights in transit to rollout workers; reused
    saved_bytes: int  # copies of the training state that are written while training goes on
    algorithm_bytes: int  # state of the algorithm between steps, such as a replay buffer
    simulator_bytes: int  # env workers with their simulators
    model_bytes: int = 0  # what workers without accelerators hold, apart from activations


@dataclass(frozen=True)
class Budget:
    """The bytes of a plan."""

    num_parameters: int
    accelerators: tuple[AcceleratorBudget, ...]
    hosts: tuple[HostBudget, ...]
    stores: tuple[StoreBudget, ...]
    links: tuple[LinkBudget, ...]
    weight_bytes: int  # one policy version, as it is sent to each rollout worker
    trajectory_bytes: int  # all trajectories of one training step, env to actor
    observation_bytes: int  # all observations of one training step, env to rollout
    times: StepTimes | None  # of one training step; None: the speed of an accelerator is unknown
    is_counted: bool = True  # False: the policy could not be counted, and memory and times say nothing


def budget(work: Workload, plan: Plan, inventory: Inventory) -> Budget:
    """Compute the budget of a plan. Raises RunError if an accelerator, a node's memory or a spill disk is too small."""
    counts = work.counts
    first_bytes, weight_bytes = version_bytes(work.config, counts)
    step = step_bytes(work)
    times = step_times(work, plan, weight_bytes) if has_known_devices(plan) else None
    return Budget(
        counts.num_parameters,
        accelerators(work, plan, inventory),
        hosts(work, plan, first_bytes),
        stores(work, plan, step, first_bytes),
        links(work, plan, step, weight_bytes),
        weight_bytes,
        step.trajectories,
        step.observations,
        times if counts.is_counted else None,
        counts.is_counted,
    )


def accelerators(work: Workload, plan: Plan, inventory: Inventory) -> tuple[AcceleratorBudget, ...]:
    """Return the use of each accelerator that the plan uses. Raises RunError if one is too small."""
    found = _accelerators(work, plan, inventory, holds_base_on_device(work, plan))
    for accelerator in found:
        _check_room(accelerator)
    return found


def shortage(work: Workload, plan: Plan, inventory: Inventory) -> int:
    """Return the bytes that the fullest accelerator lacks; not above 0 if all have room."""
    found = _accelerators(work, plan, inventory, holds_base_on_device(work, plan))
    return max((card.short_bytes for card in found), default=0)


def hosts(work: Workload, plan: Plan, weight_bytes: int) -> tuple[HostBudget, ...]:
    """Return the host memory of each node. Raises RunError if one has too little."""
    found = _hosts(work, plan, weight_bytes)
    for host in found:
        _check_host(host)
        _check_kept(host, work.config.algorithm.name)
    return found


def holds_base_on_device(work: Workload, plan: Plan) -> bool:
    """Return whether rollout workers keep the weights under adapters on their accelerators; else in host memory.

    See `RunConfig.are_adapters_apart`. All of them do the same; where a memory is unknown, it has room.
    """
    if not work.config.are_adapters_apart:
        return False
    nodes = Inventory(tuple(planned.node for planned in plan.nodes))
    cards = _accelerators(work, plan, nodes, True)
    return all(card.short_bytes <= 0 for card in cards if any(need.part == _BASE for need in card.needs))


def _accelerators(work: Workload, plan: Plan, inventory: Inventory, has_base: bool) -> tuple[AcceleratorBudget, ...]:
    """has_base: whether rollout workers keep the weights under adapters there."""
    config = work.config
    counts = work.counts
    envs = config.env.num_envs // config.env.num_workers
    simulator_bytes = work.simulator.resources.memory(config.env).of(envs, starts_of_worker(config))
    parts = {
        "actor": actor_memory(config, counts).parts(),
        "rollout": {"policy copy": counts.num_parameters * config.rollout.precision.num_bytes}
        | ({_BASE: base_bytes(config, counts)} if has_base else {})
        | _key_values(config, counts),
        "env": {"simulator": num_simulators(config) * simulator_bytes},
    }
    needs: dict[tuple[str, int], list[Need]] = defaultdict(list)
    buckets = device_bytes(work, plan)
    for slot in plan.slots:
        for index in slot.accelerators:
            share = len(slot.accelerators)
            needs[slot.node, index] += [Need(slot.name, part, n // share) for part, n in parts[slot.role].items()]
        if slot.name in buckets and slot.accelerators:
            needs[slot.node, slot.accelerators[0]].append(Need(slot.name, _BUCKETS, buckets[slot.name]))
    return tuple(
        AcceleratorBudget(
            node.name,
            index,
            device,
            tuple(needs[node.name, index]),
            bool(config.placement.offload),
        )
        for node in inventory.nodes
        for index, device in enumerate(node.accelerators)
        if (node.name, index) in needs
    )


def starts_of_worker(config: RunConfig) -> int:
    """Return how many different starts the envs of a worker have at a time, of which those of a group share one."""
    group_size = ALGORITHMS.get(config.algorithm.name).rollout(config.algorithm).group_size
    return math.ceil(config.env.num_envs / config.env.num_workers / max(1, group_size))


def _key_values(config: RunConfig, counts: PolicyCounts) -> dict[str, int]:
    """Return the bytes of SGLang's key-value pool, which has room for the rows of one answer and one row more."""
    if config.rollout.backend is not RolloutBackendKind.sglang or not counts.stacks:
        return {}
    rows = -(-config.env.num_envs // config.rollout.num_workers) + 1
    llm = counts.stacks[-1]
    per_token = 2 * len(llm.block_parameters) * llm.width * config.rollout.precision.num_bytes
    return {"key-value pool": rows * llm.num_tokens * per_token}


def _check_room(accelerator: AcceleratorBudget) -> None:
    short = accelerator.short_bytes
    if accelerator.memory_bytes is None or short <= 0:
        return
    of_roles: dict[str, Counter[str]] = {}
    for worker, num_bytes in accelerator.of_workers().items():
        of_roles.setdefault(worker.partition("/")[0], Counter())[worker] = num_bytes
    largest = max(of_roles, key=lambda role: of_roles[role].total())
    listed = " + ".join(_held(role, workers) for role, workers in of_roles.items())
    raise refused(
        f"Accelerator {accelerator.index} of node {accelerator.node} ({accelerator.device.model}, "
        f"{accelerator.memory_bytes / GIGABYTE:.1f} GB) is {short / GIGABYTE:.1f} GB short.",
        _KEYS[largest][0],
        cause=f"It would hold {listed}; {accelerator.held_back_bytes / GIGABYTE:.1f} GB are reserved for contexts and "
        "workspaces.",
        remedy=f"Most of it is of {largest} workers: {' or '.join(_KEYS[largest])} changes that.",
    )


def _held(role: str, workers: Counter[str]) -> str:
    """Example: "8 env workers 15.2 GB"."""
    name = f"{len(workers)} {role} workers" if len(workers) > 1 else next(iter(workers))
    return f"{name} {workers.total() / GIGABYTE:.1f} GB"


def _hosts(work: Workload, plan: Plan, weight_bytes: int) -> tuple[HostBudget, ...]:
    """Return the host memory of nodes: roles load one after another, each in waves that fit."""
    config = work.config
    counts = work.counts
    each = load_bytes(config, counts)
    room = loading_room(plan)
    peaks: dict[str, int] = defaultdict(int)
    num_waves: dict[str, int] = defaultdict(int)
    for role in ("actor", "rollout"):
        for wave in waves(plan.of(role), each[role], room):
            present: dict[str, int] = defaultdict(int)
            for slot in wave:
                present[slot.node] += each[role]
            for node, num_bytes in present.items():
                peaks[node] = max(peaks[node], num_bytes)
                num_waves[node] = num_waves[node] + 1
    nodes = {planned.node.name: planned.node for planned in plan.nodes}
    offloaded = _offloaded(work, plan)
    weights = weight_buffers(work, plan, weight_bytes).host
    kept = _kept_by_algorithm(config, plan, counts)
    simulators = Counter(slot.node for slot in plan.of("env"))
    envs = config.env.num_envs // config.env.num_workers
    simulator_bytes = work.simulator.resources.host_memory(config.env).of(envs, starts_of_worker(config))
    saved = _saved(config, plan, counts, kept)
    models = _models(config, plan, counts)
    return tuple(
        HostBudget(
            nodes[node],
            peaks[node],
            num_waves[node],
            offloaded[node],
            weights.get(node, 0),
            saved[node],
            kept.get(node, 0),
            num_simulators(config) * simulators[node] * simulator_bytes,
            models[node],
        )
        for node in dict.fromkeys([*peaks, *simulators])
    )


def _kept_by_algorithm(config: RunConfig, plan: Plan, counts: PolicyCounts) -> dict[str, int]:
    """Map each node with actor ranks to the bytes that the algorithm keeps there."""
    spec = ALGORITHMS.get(config.algorithm.name)
    each = spec.kept_bytes(config, counts.choice_bytes)
    return {node: each * count for node, count in Counter(slot.node for slot in plan.of("actor")).items()}


def _offloaded(work: Workload, plan: Plan) -> dict[str, int]:
    """Map each node to the buffer bytes for tensors that actor and rollout workers have there and not on accelerators.

    Of what is sent, rollout workers have no copy of their own: it is in the buffers of weight sync. An engine of SGLang
    has one.
    """
    config = work.config
    counts = work.counts
    found: dict[str, int] = defaultdict(int)
    if config.are_adapters_apart and not holds_base_on_device(work, plan):
        for slot in plan.of("rollout"):
            found[slot.node] += base_bytes(config, counts)
    if config.actor.cpu_offload:
        on_device = actor_memory(replace(config, actor=replace(config.actor, cpu_offload=False)), counts)
        for slot in plan.of("actor"):
            found[slot.node] += (on_device.resident_bytes + on_device.gradients) if slot.accelerators else 0
    if not config.placement.offload:
        return found
    is_engine = config.rollout.backend is RolloutBackendKind.sglang
    of_rollout = counts.num_parameters if is_engine else counts.num_parameters - counts.num_sent
    each = {
        "actor": actor_memory(config, counts).resident_bytes,
        "rollout": of_rollout * config.rollout.precision.num_bytes,
    }
    for role, num_bytes in each.items():
        for slot in plan.of(role):
            found[slot.node] += num_bytes if slot.accelerators else 0
    return found


def _models(config: RunConfig, plan: Plan, counts: PolicyCounts) -> dict[str, int]:
    """Map each node to what workers without accelerators hold there: training states, and weights that are not sent."""
    actor = actor_memory(config, counts)
    each = {
        "actor": actor.resident_bytes + actor.gradients,
        "rollout": (counts.num_parameters - counts.num_sent) * config.rollout.precision.num_bytes,
    }
    found: dict[str, int] = defaultdict(int)
    for role, num_bytes in each.items():
        for slot in plan.of(role):
            found[slot.node] += 0 if slot.accelerators else num_bytes
    return found


def _saved(config: RunConfig, plan: Plan, counts: PolicyCounts, kept: Mapping[str, int]) -> dict[str, int]:
    """Map each node to the bytes of a checkpoint's copies there: of the training state, of the policy at rank 0, and of
    the algorithm's state."""
    if not config.checkpoint.is_asynchronous:
        return defaultdict(int)
    found: dict[str, int] = defaultdict(int, kept)
    # each rank copies its shards, and its share of what all ranks hold
    copied = replace(config.actor, cpu_offload=False, optimizer=OptimizerKind.adamw, replicate_frozen=False)
    on_device = replace(config, actor=copied)
    state = actor_memory(on_device, counts).resident_bytes
    for slot in plan.of("actor"):
        policy = counts.num_parameters * config.actor.param_precision.num_bytes if slot.rank == 0 else 0
        found[slot.node] += state + policy
    return found


def _check_kept(host: HostBudget, algorithm: str) -> None:
    node = host.node
    buffers = host.offloaded_bytes + host.weight_bytes + host.algorithm_bytes + host.model_bytes
    short = buffers + host.saved_bytes + host.simulator_bytes - node.memory_bytes
    if short <= 0:
        return
    if 2 * host.model_bytes > buffers + host.saved_bytes + host.simulator_bytes:
        raise refused(
            f"Node {node.name} has {short / GIGABYTE:.1f} GB too little memory for its actor and rollout workers.",
            "actor.num_workers",
            cause=f"Without accelerators their weights, optimizer states and gradients take "
            f"{host.model_bytes / GIGABYTE:.1f} GB there; the node has {node.memory_bytes / GIGABYTE:.1f} GB.",
            remedy="Put them on nodes with accelerators or more memory, train adapters (actor.lora), or take a smaller "
            "policy.",
        )
    if host.simulator_bytes > host.saved_bytes + buffers:
        raise refused(
            f"Node {node.name} has {short / GIGABYTE:.1f} GB too little memory for its simulators.",
            "env.num_workers",
            cause=f"Its env workers take {host.simulator_bytes / GIGABYTE:.1f} GB, other buffers "
            f"{(buffers + host.saved_bytes) / GIGABYTE:.1f} GB; the node has {node.memory_bytes / GIGABYTE:.1f} GB.",
            remedy="Lower env.num_workers, or put env workers on a node with more memory.",
        )
    if host.saved_bytes:
        raise refused(
            f"Node {node.name} has {short / GIGABYTE:.1f} GB too little memory for checkpoints in the background.",
            "checkpoint.is_asynchronous",
            True,
            cause=f"Copies of the training state take {host.saved_bytes / GIGABYTE:.1f} GB there, other buffers "
            f"{buffers / GIGABYTE:.1f} GB; the node has "
            f"{node.memory_bytes / GIGABYTE:.1f} GB.",
            remedy="Set checkpoint.is_asynchronous=false, so that training waits for checkpoints, or choose a node "
            "with more memory.",
        )
    if host.algorithm_bytes:
        raise refused(
            f"Node {node.name} has {short / GIGABYTE:.1f} GB too little memory for what the algorithm keeps.",
            "algorithm.name",
            algorithm,
            cause=f"It keeps {host.algorithm_bytes / GIGABYTE:.1f} GB between steps on the actor ranks there, other "
            f"buffers take {(buffers - host.algorithm_bytes) / GIGABYTE:.1f} GB; the node has "
            f"{node.memory_bytes / GIGABYTE:.1f} GB.",
            remedy=f"Let it keep less by the keys of algorithm.{algorithm}, such as a smaller replay_size, or choose a "
            "node with more memory.",
        )
    if host.offloaded_bytes:
        raise refused(
            f"Node {node.name} has {short / GIGABYTE:.1f} GB too little memory for roles that share accelerators.",
            "placement.offload",
            True,
            cause=f"What is offloaded takes {host.offloaded_bytes / GIGABYTE:.1f} GB and weights on their way "
            f"to rollout workers {host.weight_bytes / GIGABYTE:.1f} GB; the node has "
            f"{node.memory_bytes / GIGABYTE:.1f} GB.",
            remedy="Set placement.offload=false with the roles on accelerators of their own, train adapters "
            "(actor.lora.rank), or choose a node with more memory.",
        )
    raise refused(
        f"Node {node.name} has {short / GIGABYTE:.1f} GB too little memory for weights on their way.",
        "weight_sync.transport",
        cause=f"The buffers of a policy version on its way to rollout workers take {host.weight_bytes / GIGABYTE:.1f} "
        f"GB there, the workers themselves {host.model_bytes / GIGABYTE:.1f} GB; the node has "
        f"{node.memory_bytes / GIGABYTE:.1f} GB.",
        remedy="Put fewer rollout workers on it, set rollout.precision=bf16, or choose a node with more memory.",
    )


def _check_host(host: HostBudget) -> None:
    short = host.peak_bytes - host.node.memory_bytes
    if short > 0:
        raise refused(
            f"Node {host.node.name} has {short / GIGABYTE:.1f} GB too little memory to load one model.",
            "placement.roles",
            cause=f"A worker takes {host.peak_bytes / GIGABYTE:.1f} GB while it loads; the node has "
            f"{host.node.memory_bytes / GIGABYTE:.1f} GB.",
            remedy="Choose a node with more memory, or a smaller policy.",
        )
