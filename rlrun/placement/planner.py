"""plan(config, inventory) decides node, accelerators and environment of every worker process. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rlrun.config.schema import ClusterKind, RolloutBackendKind, RunConfig
from rlrun.config.simulator_spec import Setting, simulator_spec
from rlrun.placement.budget import budget
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.node_environment import ACTOR_ALLOCATOR, EXACT_PINNING, setting
from rlrun.placement.plan import (
    NO_CHECK,
    ROLES,
    Choice,
    GroupRequest,
    Plan,
    PlannedNode,
    RoleRequest,
    Slot,
    read_ranks,
    read_request,
    refused,
)


@dataclass(frozen=True)
class _Member:
    """A node and the group that claimed it."""

    node: NodeInfo
    group: GroupRequest


@dataclass(frozen=True)
class _Bundle:
    """Resources of one worker: accelerator indices on a node; without accelerators it runs on the cores."""

    member: _Member
    accelerators: tuple[int, ...]
    why: str

    @property
    def devices(self) -> list[Accelerator]:
        return [self.member.node.accelerators[index] for index in self.accelerators]


_Bundles = dict[str, list[_Bundle]]  # role -> those of its workers, by rank
_Sharers = dict[tuple[str, int], Counter[str]]  # (node, accelerator) -> role -> workers


def plan(config: RunConfig, inventory: Inventory, roles: Sequence[str] = ROLES) -> Plan:
    """Place `actor.num_workers`, `rollout.num_workers` and `env.num_workers` processes.

    roles: those to place; node groups that only other roles use need not exist.
    Raises RunError (exit status 3) with the exact shortfall if the request cannot be met.
    """
    request = read_request(config.placement).of(roles)
    members = _claim(request.groups, inventory)
    bundles: _Bundles = {role: [] for role in ROLES}
    if request.roles:
        bundles |= {role.role: _seats(role, members, config) for role in request.roles}
    else:
        bundles |= _seats_by_rule(members, config, roles)
    _check_hardware(config, bundles)
    _check_interfaces(bundles)
    sharers = _sharers(bundles)
    cores = _cores_of_env_workers(bundles)
    slots = tuple(
        _slot(config, role, rank, bundle, sharers, cores) for role in ROLES for rank, bundle in enumerate(bundles[role])
    )
    training, sync = _backends(bundles)
    return Plan(_counted(members), slots, training, sync)


def num_workers(config: RunConfig, role: str) -> int:
    """Return the number of worker processes of a role."""
    counts = {
        "actor": config.actor.num_workers,
        "rollout": config.rollout.num_workers,
        "env": config.env.num_workers,
    }
    return counts[role]


# --- nodes into groups --------------------------------------------------------------------------


def _claim(groups: tuple[GroupRequest, ...], inventory: Inventory) -> list[_Member]:
    """Give each group the nodes that fit it and are still free, in the order of the inventory."""
    free = list(inventory.nodes)
    members: list[_Member] = []
    for group in groups:
        fitting = [node for node in free if fits(node, group)]
        taken = fitting[: group.count]
        needed = max(group.count or 1, len(group.names))
        if len(taken) < needed:
            raise refused(
                f"Node group '{group.name}' needs {_need(group, needed)}, {len(taken)} free: "
                f"{needed - len(taken)} short.",
                f"placement.nodes.{group.name}",
                cause=f"The inventory has {inventory}.",
                remedy="Lower count, name another accelerator, or add nodes.",
            )
        members += [_Member(node, group) for node in taken]
        claimed = {node.name for node in taken}
        free = [node for node in free if node.name not in claimed]
    return members


def fits(node: NodeInfo, group: GroupRequest) -> bool:
    """Return whether a node's name and accelerators fit a group."""
    if group.names and node.name not in group.names:
        return False
    if group.accelerator is None:
        return True
    if group.accelerator == "none":
        return not node.usable
    wanted = group.accelerator.lower()
    models = [node.accelerators[index].model.lower() for index in node.usable]
    return bool(models) and all(wanted in model for model in models)


def _need(group: GroupRequest, needed: int) -> str:
    need = f"{needed} node{'s' if needed > 1 else ''}"
    if group.accelerator is not None:
        need += f" with accelerator {group.accelerator}"
    return f"{need} named {', '.join(group.names)}" if group.names else need


def _counted(members: list[_Member]) -> tuple[PlannedNode, ...]:
    nodes, first = [], 0
    for member in members:
        nodes.append(PlannedNode(member.node, member.group.name, first))
        first += len(member.node.usable)
    return tuple(nodes)


# --- workers onto nodes -------------------------------------------------------------------------


def _accelerators_of(members: list[_Member], config: RunConfig) -> list[tuple[_Member, int]]:
    """Return the accelerators that workers may get; with cluster.kind=local one process computes on the first."""
    found = [(member, index) for member in members for index in member.node.usable]
    return found[:1] if config.cluster.kind is ClusterKind.local else found


def _seats(role: RoleRequest, members: list[_Member], config: RunConfig) -> list[_Bundle]:
    """Distribute a role's workers over its requested accelerators or cores."""
    scope = [member for name in role.on for member in members if member.group.name == name]
    everything = _accelerators_of(scope, config)
    count = num_workers(config, role.role)
    if role.accelerators is None and not everything:
        return _on_cores(scope, count, "no accelerator on its nodes")
    key = f"placement.roles.{role.role}"
    groups = ", ".join(dict.fromkeys(member.group.name for member in scope))
    ranks = read_ranks(role.accelerators, len(everything), key, f"node group {groups}")
    per_worker, per_accelerator = _ratio(role, len(ranks), count, config)
    why = f"{key}: {'all accelerators' if role.accelerators is None else role.accelerators}"
    if per_accelerator > 1:
        why += f", {per_accelerator} workers on each"
    bundles = []
    for worker in range(count):
        first = worker // per_accelerator * per_worker
        chosen = [everything[rank] for rank in ranks[first : first + per_worker]]
        nodes = {member.node.name for member, _ in chosen}
        if len(nodes) > 1:
            raise refused(
                f"{role.role}/{worker} would span the nodes {', '.join(sorted(nodes))}.",
                key,
                role.accelerators,
                cause=f"{per_worker} accelerators for each worker cross the border between nodes.",
                remedy="Choose ranks so that each node holds a multiple of accelerators_per_worker.",
            )
        bundles.append(_Bundle(chosen[0][0], tuple(index for _, index in chosen), why))
    return bundles


def _ratio(role: RoleRequest, accelerators: int, workers: int, config: RunConfig) -> tuple[int, int]:
    """Return (accelerators per worker, workers per accelerator); one of them is 1. Raises RunError."""
    key, workers_key = f"placement.roles.{role.role}", f"{role.role}.num_workers"
    per_worker = role.accelerators_per_worker or max(1, accelerators // workers)
    per_accelerator = role.workers_per_accelerator or max(1, workers // max(1, accelerators))
    planned = accelerators * per_accelerator // per_worker
    if planned != workers or accelerators % per_worker or min(per_worker, per_accelerator) != 1:
        how = f"{accelerators} accelerators"
        if role.workers_per_accelerator or role.accelerators_per_worker:
            how += f" x {per_accelerator} workers / {per_worker} accelerators per worker"
        raise refused(
            f"{workers} {role.role} workers do not fit evenly on {how}.",
            workers_key,
            workers,
            cause="Every worker of a role gets equally many accelerators, or equally many share one.",
            remedy=f"Set {workers_key}={max(1, planned)}, or change {key}.",
        )
    takes_several = role.role == "rollout" and config.rollout.backend is RolloutBackendKind.sglang
    if per_worker > 1 and not takes_several:
        raise refused(
            f"{accelerators} accelerators for {workers} {role.role} workers: each would get {per_worker} and use one.",
            key,
            role.accelerators,
            cause="Only rollout workers with rollout.backend=sglang spread one process over several accelerators.",
            remedy=f"Set {workers_key}={accelerators}, or name {workers} accelerators.",
        )
    return per_worker, per_accelerator


def _on_cores(members: list[_Member], count: int, why: str) -> list[_Bundle]:
    """Distribute workers evenly over nodes; consecutive ranks share a node."""
    return [_Bundle(members[rank * len(members) // count], (), why) for rank in range(count)]


def _seats_by_rule(members: list[_Member], config: RunConfig, roles: Sequence[str]) -> _Bundles:
    """Place workers without a request: on free accelerators first, then on shared ones; on cores if there are none."""
    everything = _accelerators_of(members, config)
    if not everything:
        return {role: _on_cores(members, num_workers(config, role), "no accelerator anywhere") for role in roles}
    bundles: _Bundles = {}
    used = 0
    for role in (role for role in ROLES if role in roles):
        count = num_workers(config, role)
        if role == "actor" and count > len(everything):
            why = f"{count} FSDP ranks, {len(everything)} accelerators: set actor.num_workers to use them"
            bundles[role] = _on_cores(members, count, why)
            continue
        chosen = [everything[(used + rank) % len(everything)] for rank in range(count)]
        bundles[role] = [_Bundle(member, (index,), "by rule: free accelerators first") for member, index in chosen]
        used += count
    return bundles


# --- checks of the hardware ---------------------------------------------------------------------


def _check_hardware(config: RunConfig, bundles: _Bundles) -> None:
    for rank, bundle in enumerate(bundles["env"]):
        if simulator_spec(config.env).needs_rt_cores:
            _check_rt_cores(config.env.simulator, rank, bundle)
    for rank, bundle in enumerate(bundles["rollout"]):
        models = {device.model for device in bundle.devices}
        if len(models) > 1:
            raise refused(
                f"rollout/{rank} would span unlike accelerators: {', '.join(sorted(models))}.",
                "placement.roles.rollout",
                cause="A tensor-parallel group runs at the pace, and with the memory, of its weakest member.",
                remedy="Choose ranks of one model.",
            )
    users = Counter((bundle.member.node.name, index) for bundle in bundles["actor"] for index in bundle.accelerators)
    for (node, index), count in users.items():
        if count > 1:
            raise refused(
                f"{count} actor ranks share accelerator {index} of node {node}.",
                "actor.num_workers",
                len(bundles["actor"]),
                cause="NCCL allows one rank per accelerator.",
                remedy=f"Set actor.num_workers={len(users)}.",
            )


def _check_rt_cores(simulator: str, rank: int, bundle: _Bundle) -> None:
    if bundle.devices and all(device.has_rt_cores for device in bundle.devices):
        return
    have = bundle.devices[0].model if bundle.devices else "no accelerator"
    raise refused(
        f"env/{rank} would simulate on node {bundle.member.node.name} with {have}, which has no RT cores.",
        "placement.roles.env",
        cause=f"{simulator} ray-traces its cameras; without RT cores images show severe artefacts or are missing.",
        remedy="Put env on RTX accelerators (such as RTX 4090, L40S, A6000), or take another env.simulator.",
    )


def _check_interfaces(bundles: _Bundles) -> None:
    """Check that each node has the interface of its group, if the inventory lists interfaces."""
    members = {bundle.member.node.name: bundle.member for role_bundles in bundles.values() for bundle in role_bundles}
    for name, member in members.items():
        wanted, here = member.group.interface, member.node.interfaces
        if wanted is None or not here or wanted in [interface.name for interface in here]:
            continue
        raise refused(
            f"Node {name} has no interface '{wanted}' with an IPv4 address.",
            f"placement.nodes.{member.group.name}.interface",
            wanted,
            cause=f"{name} has {', '.join(f'{i.name} ({i.addresses[0]})' for i in here)}.",
            remedy="Remove the key: rlrun then uses the interface that owns the route to the head. Put nodes with "
            "other interface names into groups of their own.",
        )


def _backends(bundles: _Bundles) -> tuple[Choice, Choice]:
    """Choose NCCL for a group whose ranks all have accelerators of their own, else Gloo."""
    if not bundles["actor"]:
        none = Choice("gloo", "no actor rank is planned")
        return none, none
    if not all(bundle.accelerators for bundle in bundles["actor"]):
        no = Choice("gloo", "actor ranks train on the CPU")
        return no, no
    if any(bundle.devices[0].is_fake for bundle in bundles["actor"]):
        no = Choice("gloo", "the accelerators are declared for a test and do not exist")
        return no, no
    training = Choice("nccl", "every actor rank has an accelerator of its own")
    group = [bundles["actor"][0], *bundles["rollout"]]
    places = [(bundle.member.node.name, index) for bundle in group for index in bundle.accelerators[:1]]
    if len(places) == len(group) == len(set(places)):
        return training, Choice("nccl", "actor rank 0 and the rollout workers have accelerators of their own")
    return training, Choice("gloo", "NCCL needs an accelerator for each of actor rank 0 and the rollout workers")


# --- slots --------------------------------------------------------------------------------------


def _slot(config: RunConfig, role: str, rank: int, bundle: _Bundle, sharers: _Sharers, cores: dict[str, int]) -> Slot:
    node, group = bundle.member.node, bundle.member.group
    models = [node.accelerators[index].model for index in bundle.accelerators]
    chosen = tuple(
        Setting(name, value, f"placement.nodes.{group.name}.environment") for name, value in group.environment
    )
    return Slot(
        role=role,
        rank=rank,
        node=node.name,
        address=node.address,
        accelerators=bundle.accelerators,
        accelerator_model=models[0] if models else "",
        environment=_environment(config, role, bundle, cores) + chosen,
        interpreter=group.python,
        interface=group.interface,
        why=bundle.why,
        memory_check=_memory_check(role, bundle, sharers),
    )


def _sharers(bundles: _Bundles) -> _Sharers:
    """Count the workers of each role on each accelerator."""
    sharers: _Sharers = {}
    for role, role_bundles in bundles.items():
        for bundle in role_bundles:
            for index in bundle.accelerators:
                sharers.setdefault((bundle.member.node.name, index), Counter())[role] += 1
    return sharers


def _cores_of_env_workers(bundles: dict[str, list[_Bundle]]) -> dict[str, int]:
    """Return node -> cores of each of its env workers: an equal share, at least one."""
    workers = Counter(bundle.member.node.name for bundle in bundles["env"])
    nodes = {bundle.member.node.name: bundle.member.node for bundle in bundles["env"]}
    return {name: max(1, node.num_cpus // workers[name]) for name, node in nodes.items()}


def _memory_check(role: str, bundle: _Bundle, sharers: _Sharers) -> Choice:
    """Switch SGLang's memory check off only if the plan itself makes free memory unequal: it finds leaked processes."""
    if role != "rollout" or len(bundle.accelerators) < 2:
        return NO_CHECK
    counts = [sharers[bundle.member.node.name, index] for index in bundle.accelerators]
    if all(count == counts[0] for count in counts):
        return Choice("on", "its accelerators are equally shared, so unequal free memory is a fault")
    return Choice("off", "other workers use some of its accelerators only, so free memory is unequal by plan")


def _environment(config: RunConfig, role: str, bundle: _Bundle, cores: dict[str, int]) -> tuple[Setting, ...]:
    threads = {"actor": config.actor.num_threads, "rollout": config.rollout.num_threads, "env": 1}[role]
    settings = [setting("OMP_NUM_THREADS", threads)]
    if bundle.member.node.accelerators:
        settings.append(setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID"))
        settings.append(setting("CUDA_VISIBLE_DEVICES", ",".join(str(index) for index in bundle.accelerators)))
    if role == "env":
        return (
            *settings,
            *simulator_spec(config.env).environment(bundle.accelerators, cores[bundle.member.node.name]),
        )
    settings.append(setting("TOKENIZERS_PARALLELISM", "false"))
    if bundle.accelerators and role == "actor":
        settings.append(setting("PYTORCH_ALLOC_CONF", ACTOR_ALLOCATOR))
    elif bundle.accelerators and config.rollout.backend is RolloutBackendKind.hf:
        settings.append(setting("PYTORCH_ALLOC_CONF", EXACT_PINNING))
    if bundle.accelerators:
        return (*settings, setting("TORCH_FR_BUFFER_SIZE", 2000), setting("TORCH_NCCL_DUMP_ON_TIMEOUT", 1))
    return tuple(settings)


def place(slot: Slot) -> tuple[str, tuple[int, ...]]:
    """Return a worker's node and accelerators. Example: place(slot) == ("sim-0", (3,))."""
    return slot.node, slot.accelerators


def replanned(config: RunConfig, old: Plan, living: Inventory, lost: Collection[str]) -> Plan:
    """Plan for the nodes that are alive now. Raises RunError (exit status 3) if the run does not fit on them.

    lost: names of nodes lost since `old` was made; a node that came back is in `living` as well. Actor ranks keep
    their places unless one of them is lost: they hold the trained weights, and can only move together.
    """
    fresh = plan(config, living)
    budget(config, fresh, living)
    actors = list(zip(old.of("actor"), fresh.of("actor"), strict=True))
    moved = [after for before, after in actors if place(before) != place(after)]
    if moved and not any(before.node in lost for before, _ in actors):
        raise refused(
            f"{moved[0].name}, which is alive, would have to move to {moved[0].node}.",
            "placement.roles.actor",
            cause="Without the lost node, accelerators are numbered differently.",
            remedy="Give the actor ranks a node group of their own: their places then do not depend on other nodes.",
        )
    return fresh
