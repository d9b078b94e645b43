"""Checks of memory and accelerators: enough, free, of one kind, and not in use by other programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rlrun.doctor.check import ClusterState, Finding, Status, size
from rlrun.doctor.facts import GpuFacts, NodeFacts
from rlrun.placement.memory import load_bytes
from rlrun.placement.policy_counts import policy_counts
from rlrun.system.nvidia_smi import major_version
from rlrun.system.torch_index import FIRST_DRIVER, index_for

FAKE = "RLRUN_FAKE_ACCELERATORS"
SPREAD = 0.1  # largest difference of the free share of memory between accelerators with the same work
LEFTOVER_BYTES = 500e6  # a CUDA context alone takes some hundred megabytes


def placement(cluster: ClusterState) -> Iterator[Finding]:
    """Report the planner's refusal: counts, RT cores, unlike accelerators, memory."""
    refusal = cluster.refusal
    if refusal is not None:
        cause = f"{refusal.message} {refusal.cause or ''}".strip()
        fix = refusal.remedy or f"change {refusal.key}"
        where = next((a.node for a in cluster.requests if f"node {a.node}" in cause), "")
        yield Finding("placement", Status.failed, where, cause, fix, f"{refusal.key}={refusal.value}")


def memory(cluster: ClusterState) -> Iterator[Finding]:
    """Check that each node has free host memory for the largest worker that it loads."""
    if cluster.budget is None:
        return
    needs = load_bytes(cluster.config, policy_counts(cluster.config))
    for node in cluster.facts.nodes:
        largest = max((needs[role] for role in cluster.request(node.node).workers), default=0)
        if node.free_memory_bytes < largest:
            yield Finding(
                "memory",
                Status.failed,
                node.node,
                f"a worker needs {size(largest)} while it loads; {size(node.free_memory_bytes)} of "
                f"{size(node.memory_bytes)} is free",
                "ps aux --sort=-rss | head; or ask the scheduler for more memory (sbatch --mem=…)",
                size(node.free_memory_bytes),
            )


def accelerators(cluster: ClusterState) -> Iterator[Finding]:
    """Check that the planned accelerators exist, and that driver and torch can use them."""
    drivers = {node.node: node.gpus[0].driver for node in cluster.facts.nodes if node.gpus}
    for node in cluster.facts.nodes:
        used = _used(cluster, node)
        if FAKE in node.environment:
            cause = f"{FAKE} declares accelerators that are not there; no worker can compute on them"
            yield Finding("accelerators", Status.warning, node.node, cause, f"unset {FAKE}")
            continue
        if node.gpu_fault:
            yield _not_listed(node, bool(used))
            continue
        missing = sorted(index for index in used if index not in [gpu.index for gpu in node.gpus])
        if missing:
            cause = f"the plan uses accelerators {missing}; nvidia-smi lists {len(node.gpus)}"
            yield Finding("accelerators", Status.failed, node.node, cause, "nvidia-smi -L; dmesg | grep -i xid")
        roles = {slot.role for slot in cluster.slots(node.node) if slot.accelerators}
        if roles & {"actor", "rollout"}:
            yield from _torch_support(node)
    if len(set(drivers.values())) > 1:
        listing = ", ".join(f"{driver} on {node}" for node, driver in drivers.items())
        cause = f"drivers differ: {listing}"
        yield Finding("accelerators", Status.warning, "", cause, "install the same driver everywhere", listing)


def _not_listed(node: NodeFacts, is_used: bool) -> Finding:
    """Return the finding that nvidia-smi cannot say which accelerators there are, which does not mean that none is."""
    then = "the accelerators of the plan are not compared" if is_used else "the plan uses no accelerator there"
    cause = f"{node.gpu_fault}; {then}"
    return Finding("accelerators", Status.warning, node.node, cause, "nvidia-smi; dmesg | tail", node.gpu_fault)


def _torch_support(node: NodeFacts) -> Iterator[Finding]:
    if "torch" not in node.versions:
        return  # the check of versions reports it
    cuda = node.versions.get("torch CUDA")
    if cuda is None:
        cause = f"torch {node.versions['torch']} was built without CUDA"
        drivers = [gpu.driver for gpu in node.gpus] or [""]
        yield Finding("accelerators", Status.failed, node.node, cause, _torch_for(node, drivers[0]))
        return
    needed = FIRST_DRIVER.get(int(cuda.split(".")[0]))
    old = [gpu.driver for gpu in node.gpus if needed and (major_version(gpu.driver) or needed) < needed]
    if old:
        cause = f"torch needs CUDA {cuda}, so driver {needed} or later; {old[0]} is installed"
        fix = f"install driver {needed} or later, or the same torch for this driver: {_torch_for(node, old[0])}"
        yield Finding("accelerators", Status.failed, node.node, cause, fix)


def _torch_for(node: NodeFacts, driver: str) -> str:
    """Return the command that installs the node's version of torch for its driver."""
    try:
        index = index_for(driver)
    except ValueError as error:
        return str(error)
    version = node.versions["torch"].partition("+")[0]
    place = "" if index is None else f"--index-url {index} "
    return f"pip install --force-reinstall {place}torch=={version}"


def accelerator_memory(cluster: ClusterState) -> Iterator[Finding]:
    """Check free device memory, other processes that hold some, and its spread over workers of one role."""
    free_of_role: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for node in cluster.facts.nodes:
        for gpu in node.gpus:
            roles = _used(cluster, node).get(gpu.index)
            if not roles:
                continue
            if gpu.free_bytes is None or gpu.total_bytes is None:
                cause = f"nvidia-smi does not say how much memory accelerator {gpu.index} ({gpu.model}) has free"
                yield Finding("accelerator memory", Status.warning, node.node, cause, "nvidia-smi -q -d MEMORY")
                continue
            yield from _free_memory(cluster, node, gpu)
            for role in sorted(roles):
                share = gpu.free_bytes / max(1, gpu.total_bytes)
                free_of_role[role, gpu.model].append((share, f"{node.node} accelerator {gpu.index}"))
    for (role, model), shares in free_of_role.items():
        least = min(shares)
        most = max(shares)
        if most[0] - least[0] > SPREAD:
            yield Finding(
                "accelerator memory",
                Status.warning,
                "",
                f"free memory of the {model} of {role} workers is uneven: {least[0]:.0%} on {least[1]}, {most[0]:.0%} "
                f"on {most[1]}",
                "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv",
                f"spread {most[0] - least[0]:.0%}",
            )


def _free_memory(cluster: ClusterState, node: NodeFacts, gpu: GpuFacts) -> Iterator[Finding]:
    assert gpu.free_bytes is not None and gpu.total_bytes is not None  # the caller has looked
    held = [process for process in gpu.processes if (process.memory_bytes or 0) > LEFTOVER_BYTES]
    holders = ", ".join(f"pid {p.pid or 'unknown'} {p.name} {size(p.memory_bytes or 0)}" for p in held)
    pids = [str(p.pid) for p in held if p.pid is not None]
    fix = f"kill {' '.join(pids)}  # if they are not needed" if pids else "nvidia-smi"
    budgets = cluster.budget.accelerators if cluster.budget else ()
    needed = sum(b.peak_bytes for b in budgets if (b.node, b.index) == (node.node, gpu.index))
    free = f"{size(gpu.free_bytes)} of {size(gpu.total_bytes)} free"
    if gpu.free_bytes < needed:
        cause = (
            f"accelerator {gpu.index} has {free}, the plan needs {size(needed)}; held by "
            f"{holders or 'a process that nvidia-smi does not list'}"
        )
        yield Finding("accelerator memory", Status.failed, node.node, cause, fix, free)
    elif held:
        cause = f"accelerator {gpu.index} is held by others: {holders}"
        yield Finding("accelerator memory", Status.warning, node.node, cause, fix, free)


def _used(cluster: ClusterState, node: NodeFacts) -> dict[int, set[str]]:
    """Map the index of an accelerator to the roles of the workers that the plan puts on it."""
    used: dict[int, set[str]] = defaultdict(set)
    for slot in cluster.slots(node.node):
        for index in slot.accelerators:
            used[index].add(slot.role)
    return used
