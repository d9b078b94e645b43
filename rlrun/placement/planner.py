"""plan(work, inventory) decides node, accelerators and environment of every worker process. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from rlrun.config.schema import ClusterKind, RolloutBackendKind, RunConfig
from rlrun.config.simulator_process import Setting
from rlrun.placement.budget import accelerators, budget
from rlrun.placement.bundles import Bundle, Bundles, Member, backends, check_hardware, check_interfaces
from rlrun.placement.inventory import Inventory, NodeInfo
from rlrun.placement.memory import version_bytes
from rlrun.placement.node_environment import allocator, compile_threads, may_compile, setting
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
from rlrun.placement.step_time import has_devices, step_times
from rlrun.placement.workload import Workload
from rlrun.system.errors import RunError

# of a node group's accelerators
WITH_RT_CORES = "with_rt_cores"
WITHOUT_RT_CORES = "without_rt_cores"
_Sharers = dict[tuple[str, int], Counter[str]]  # (node, accelerator) -> role -> workers
_Cores = dict[str, dict[str, int]]  # role -> node -> cores of each of its workers


def plan(work: Workload, inventory: Inventory, roles: Sequence[str] = ROLES) -> Plan:
    """Place `actor.num_workers`, `rollout.num_workers` and `env.num_workers` processes.

    roles: those to place; node groups that only other roles use need not exist.
    Raises RunError (exit status 3) with the exact shortfall if the request cannot be met.
    """
    options = plans(work, inventory, roles)
    return options[0] if len(options) == 1 else _fastest(work, options, inventory)


def plans(work: Workload, inventory: Inventory, roles: Sequence[str] = ROLES) -> list[Plan]:
    """Return the placements that the hardware allows: one by request, or those by rule on unlike accelerators.

    Raises RunError if there is none.
    """
    config = work.config
    request = read_request(config.placement).of(roles)
    members = _claim(request.groups, inventory)
    if request.roles:
        seats = {role.role: _seats(role, members, config) for role in request.roles}
        return [_planned(work, members, _no_bundles() | seats)]
    options = []
    refusal = None
    for bundles in {_places(bundles): bundles for bundles in _by_rule(members, config, roles)}.values():
        try:
            options.append(_planned(work, members, bundles))
        except RunError as error:
            refusal = refusal or error
    if not options and refusal is not None:
        raise refusal
    return options


def _places(bundles: Bundles) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return role, node and accelerators of each worker."""
    return tuple((role, one.member.node.name, one.accelerators) for role in ROLES for one in bundles[role])


def _planned(work: Workload, members: list[Member], bundles: Bundles) -> Plan:
    """Return the plan with these resources of the workers. Raises RunError if a role's hardware does not suit it."""
    check_hardware(work.config, work.simulator.resources.needs_rt_cores, bundles)
    check_interfaces(bundles)
    sharers = _sharers(bundles)
    cores = {role: _cores_of_each(bundles[role]) for role in ROLES}
    slots = tuple(
        _slot(work, role, rank, bundle, sharers, cores) for role in ROLES for rank, bundle in enumerate(bundles[role])
    )
    planned = Plan(_counted(members), slots, *backends(bundles))
    work.ways(planned)  # refuses a transport that it cannot have
    return planned


def _fastest(work: Workload, options: list[Plan], inventory: Inventory) -> Plan:
    """Return the plan with the shortest training step that fits; the first of `options` without accelerators."""
    known = [option for option in options if has_devices(option)]
    if not known:
        return options[0]
    weight_bytes = version_bytes(work.config, work.counts)[1]
    for option in sorted(known, key=lambda one: step_times(work, one, weight_bytes).step_s):
        try:
            accelerators(work, option, inventory)
            return option
        except RunError:
            continue  # the next one may fit
    return options[0]


def num_workers(config: RunConfig, role: str) -> int:
    """Return the number of worker processes of a role."""
    counts = {
        "actor": config.actor.num_workers,
        "rollout": config.rollout.num_workers,
        "env": config.env.num_workers,
    }
    return counts[role]


# --- nodes into groups --------------------------------------------------------------------------


def _claim(groups: tuple[GroupRequest, ...], inventory: Inventory) -> list[Member]:
    """Give each group the nodes that fit it and are still free, in the order of the inventory."""
    free = list(inventory.nodes)
    members: list[Member] = []
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
        members += [Member(node, group) for node in taken]
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
    devices = [node.accelerators[index] for index in node.usable]
    if group.accelerator in (WITH_RT_CORES, WITHOUT_RT_CORES):
        wanted_cores = group.accelerator == WITH_RT_CORES
        return bool(devices) and all(device.has_rt_cores == wanted_cores for device in devices)
    wanted = group.accelerator.lower()
    return bool(devices) and all(wanted in device.model.lower() for device in devices)


def _need(group: GroupRequest, needed: int) -> str:
    need = f"{needed} node{'s' if needed > 1 else ''}"
    if group.accelerator in (WITH_RT_CORES, WITHOUT_RT_CORES):
        need += f" whose accelerators {'have' if group.accelerator == WITH_RT_CORES else 'lack'} RT cores"
    elif group.accelerator is not None:
        need += f" with accelerator {group.accelerator}"
    return f"{need} named {', '.join(group.names)}" if group.names else need


def _counted(members: list[Member]) -> tuple[PlannedNode, ...]:
    nodes = []
    first = 0
    for member in members:
        nodes.append(PlannedNode(member.node, member.group.name, first))
        first += len(member.node.usable)
    return tuple(nodes)


# --- workers onto nodes -------------------------------------------------------------------------


def _accelerators_of(members: list[Member], config: RunConfig) -> list[tuple[Member, int]]:
    """Return the accelerators that workers may get; with cluster.kind=local one process computes on the first."""
    found = [(member, index) for member in members for index in member.node.usable]
    return found[:1] if config.cluster.kind is ClusterKind.local else found


def _seats(role: RoleRequest, members: list[Member], config: RunConfig) -> list[Bundle]:
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
        bundles.append(Bundle(chosen[0][0], tuple(index for _, index in chosen), why))
    return bundles


def _ratio(role: RoleRequest, accelerators: int, workers: int, config: RunConfig) -> tuple[int, int]:
    """Return (accelerators per worker, workers per accelerator); one of them is 1. Raises RunError."""
    key = f"placement.roles.{role.role}"
    workers_key = f"{role.role}.num_workers"
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


def _on_cores(members: list[Member], count: int, why: str) -> list[Bundle]:
    """Distribute workers evenly over nodes; consecutive ranks share a node."""
    return [Bundle(members[rank * len(members) // count], (), why) for rank in range(count)]


def _by_rule(members: list[Member], config: RunConfig, roles: Sequence[str]) -> Iterator[Bundles]:
    """Yield placements without a request: on free accelerators first, then on shared ones; on cores if there are none.

    With unlike accelerators there is one placement for each choice of the roles' models, or of all models together.
    Raises RunError if there are fewer accelerators than actor ranks.
    """
    everything = _accelerators_of(members, config)
    if not everything:
        cores = {role: _on_cores(members, num_workers(config, role), "no accelerator anywhere") for role in roles}
        yield _no_bundles() | cores
        return
    ranks = num_workers(config, "actor") if "actor" in roles else 0
    if ranks > len(everything):
        there = f"{len(everything)} accelerator{'s' if len(everything) > 1 else ''}"
        raise refused(
            f"{ranks} actor ranks do not fit on {there}.",
            "actor.num_workers",
            ranks,
            cause="Each FSDP rank has an accelerator of its own; on cores a rank would keep all others waiting.",
            remedy="Set actor.num_workers=auto.",
        )
    yield _on_accelerators(config, dict.fromkeys(roles, everything))
    by_model: dict[str, list[tuple[Member, int]]] = {}
    for member, index in everything:
        by_model.setdefault(member.node.accelerators[index].model, []).append((member, index))
    if len(by_model) > 1:
        for pools in itertools.product([*by_model.values(), everything], repeat=len(roles)):
            chosen = dict(zip(roles, pools, strict=True))
            if ranks <= len(chosen.get("actor", everything)):
                yield _on_accelerators(config, chosen)


def _no_bundles() -> Bundles:
    return {role: [] for role in ROLES}


def _on_accelerators(config: RunConfig, pools: dict[str, list[tuple[Member, int]]]) -> Bundles:
    """Give the workers of each role accelerators of its pool, those with fewest workers first."""
    bundles = _no_bundles()
    users = Counter[tuple[str, int]]()
    for role in (role for role in ROLES if role in pools):
        pool = pools[role]
        count = num_workers(config, role)
        for _ in range(count):
            member, index = min(pool, key=lambda one: users[one[0].node.name, one[1]])
            users[member.node.name, index] += 1
            bundles[role].append(Bundle(member, (index,), "by rule: free accelerators first"))
    return bundles


# --- slots --------------------------------------------------------------------------------------


def _slot(work: Workload, role: str, rank: int, bundle: Bundle, sharers: _Sharers, cores: _Cores) -> Slot:
    node = bundle.member.node
    group = bundle.member.group
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
        environment=_known_environment(work, role, bundle, cores) + chosen,
        interpreter=group.python,
        interface=group.interface,
        why=bundle.why,
        memory_check=_memory_check(role, bundle, sharers),
    )


def _sharers(bundles: Bundles) -> _Sharers:
    """Count the workers of each role on each accelerator."""
    sharers: _Sharers = {}
    for role, role_bundles in bundles.items():
        for bundle in role_bundles:
            for index in bundle.accelerators:
                sharers.setdefault((bundle.member.node.name, index), Counter())[role] += 1
    return sharers


def _cores_of_each(bundles: list[Bundle]) -> dict[str, int]:
    """Return node -> cores of each of a role's workers there: an equal share, at least one."""
    workers = Counter(bundle.member.node.name for bundle in bundles)
    nodes = {bundle.member.node.name: bundle.member.node for bundle in bundles}
    return {name: max(1, node.num_cpus // workers[name]) for name, node in nodes.items()}


def _memory_check(role: str, bundle: Bundle, sharers: _Sharers) -> Choice:
    """Switch SGLang's memory check off only if the plan itself makes free memory unequal: it finds leaked processes."""
    if role != "rollout" or len(bundle.accelerators) < 2:
        return NO_CHECK
    counts = [sharers[bundle.member.node.name, index] for index in bundle.accelerators]
    if all(count == counts[0] for count in counts):
        return Choice("on", "its accelerators are equally shared, so unequal free memory is a fault")
    return Choice("off", "other workers use some of its accelerators only, so free memory is unequal by plan")


def _known_environment(work: Workload, role: str, bundle: Bundle, cores: _Cores) -> tuple[Setting, ...]:
    node = bundle.member.node
    alike = (role, bundle.accelerators, bool(node.accelerators), cores[role][node.name])
    if alike not in work.environments:
        work.environments[alike] = _environment(work, role, bundle, cores)
    return work.environments[alike]


def _environment(work: Workload, role: str, bundle: Bundle, cores: _Cores) -> tuple[Setting, ...]:
    config = work.config
    threads = {"actor": config.actor.num_threads, "rollout": config.rollout.num_threads, "env": 1}[role]
    settings = [setting("OMP_NUM_THREADS", threads)]
    if bundle.member.node.accelerators:
        settings.append(setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID"))
        settings.append(setting("CUDA_VISIBLE_DEVICES", ",".join(str(index) for index in bundle.accelerators)))
    if role == "env":
        return (
            *settings,
            *work.simulator.process.environment(bundle.accelerators, cores[role][bundle.member.node.name]),
        )
    settings.append(setting("TOKENIZERS_PARALLELISM", "false"))
    if may_compile(config, role, bool(bundle.accelerators)):
        settings.append(compile_threads(cores[role][bundle.member.node.name]))
    if bundle.accelerators and (role == "actor" or config.rollout.backend is RolloutBackendKind.hf):
        of_memory = allocator(role == "actor", work.torch_version)
        settings += [setting("PYTORCH_ALLOC_CONF", of_memory)] if of_memory else []
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
    work = Workload(config)
    fresh = plan(work, living)
    budget(work, fresh, living)
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
