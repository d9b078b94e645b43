"""Which processes try an all-reduce before the run: one per node in pairs, or two processes of a single node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.doctor.accelerator_checks import FAKE
from rlrun.doctor.collective import NCCL_S, Job
from rlrun.doctor.facts import NodeFacts
from rlrun.placement.plan import Plan, Slot

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class Member:
    """One process of a trial. Example: Member("train-0", "train-0 actor/1", 1)."""

    node: str
    name: str  # the node's name if it has one member, else node and worker
    accelerator: int | None  # index on the node; None: CPU


def groups(config: RunConfig, plan: Plan | None, nodes: Mapping[str, NodeFacts]) -> dict[str, list[Member]]:
    """Map each backend to its members on `nodes`, the measured ones.

    A single node tries NCCL only, since no network carries its Gloo. Leaves out NCCL if accelerators are only declared.
    """
    is_real = not any(FAKE in facts.environment for facts in nodes.values())
    is_tried = {"gloo": len(nodes) > 1, "nccl": is_real}
    return {
        backend: [member for member in members(config, plan, backend) if member.node in nodes]
        for backend in BACKENDS
        if plan is not None and is_tried[backend] and backend not in config.doctor.skip
    }


def jobs(
    group: Sequence[Member],
    backend: str,
    interface_of: Callable[[str], str],
    address: str,
    port: int,
    link_s: float,
    factor: float = 1.0,
) -> dict[str, list[Job]]:
    """Return the jobs of every node, by node; {} for fewer than two members.

    interface_of: of a node. address, port: of the store, which the first member opens. link_s: limit of Gloo.
    factor: of all limits, on busy hosts.
    """
    if len(group) < 2:
        return {}
    every = planned_pairs([member.name for member in group])
    timeout_s = max(NCCL_S, link_s) if backend == "nccl" else link_s
    jobs_of_nodes: dict[str, list[Job]] = {node: [] for node in nodes_of(group)}
    for member in group:
        pairs_of_member = [pair for pair in every if member.name in pair]
        where = (backend, interface_of(member.node), address, port, member is group[0])
        jobs_of_nodes[member.node].append(
            Job(member.name, pairs_of_member, *where, timeout_s, member.accelerator, factor)
        )
    return jobs_of_nodes


def members(config: RunConfig, plan: Plan, backend: str) -> list[Member]:
    """Return one process per node of the process group of `backend`, beginning with that of actor rank 0.

    If one node has them all, returns its first two processes; under NCCL on two accelerators, since NCCL refuses two
    ranks on one. With fewer than two members no all-reduce is tried.
    """
    unlike: dict[tuple[str, object], Slot] = {}
    for slot in _group(config, plan, backend):
        unlike.setdefault((slot.node, slot.accelerators[0] if backend == "nccl" else slot.name), slot)
    slots = list(unlike.values())
    nodes = list(dict.fromkeys(slot.node for slot in slots))
    if len(nodes) == 1:
        return [_member(slot, f"{slot.node} {slot.name}", backend) for slot in slots[:2]]
    firsts = [next(slot for slot in slots if slot.node == node) for node in nodes]
    return [_member(slot, slot.node, backend) for slot in firsts]


def _group(config: RunConfig, plan: Plan, backend: str) -> list[Slot]:
    """Return the slots of the process group of `backend`. Gloo is always used for tensors in host memory."""
    slots = list(plan.of("actor"))
    if not slots or (backend == "nccl" and plan.training_backend.value != "nccl"):
        return []
    if config.weight_sync.transport is WeightTransport.collective and backend in ("gloo", plan.sync_backend.value):
        slots += plan.of("rollout")
    return slots


def _member(slot: Slot, name: str, backend: str) -> Member:
    return Member(slot.node, name, slot.accelerators[0] if backend == "nccl" else None)


def planned_pairs(names: Sequence[str], limit: int = 12) -> list[tuple[str, str]]:
    """Return the pairs of a group to try: all of them, or for more than `limit` members a star and a chain.

    Example: planned_pairs(["a", "b", "c"]) is [(a, b), (a, c), (b, c)].
    """
    if len(names) <= limit:
        return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    star = [(names[0], name) for name in names[1:]]
    return star + list(pairwise(names[1:]))


def nodes_of(members: Iterable[Member]) -> list[str]:
    """Return the nodes of members, each once, in the members' order."""
    return list(dict.fromkeys(member.node for member in members))
