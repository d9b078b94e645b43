"""Which processes try an all-reduce with each other before the run: two of unlike nodes, or two of the only one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.placement.plan import Plan, Slot

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class Member:
    """One process of a trial. Example: Member("train-0", "train-0 actor/1", 1)."""

    node: str
    name: str  # the node's, where it has no other member
    accelerator: int | None  # index on the node; None: it computes on the CPU


def members(config: RunConfig, plan: Plan, backend: str) -> list[Member]:
    """One process of every node whose workers share a process group of `backend`, that of actor rank 0 first.

    Where all of them are on one node: its first two, which under NCCL are two of unlike accelerators, since NCCL
    refuses two ranks on one. Fewer than two members: there is nothing to try.
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
    """Slots whose workers use `backend` between them. Gloo serves what is in host memory, whatever else is used."""
    slots = list(plan.of("actor"))
    if backend == "nccl" and plan.training_backend.value != "nccl":
        return []
    if config.weight_sync.transport is WeightTransport.collective and backend in ("gloo", plan.sync_backend.value):
        slots += plan.of("rollout")
    return slots


def _member(slot: Slot, name: str, backend: str) -> Member:
    return Member(slot.node, name, slot.accelerators[0] if backend == "nccl" else None)


def planned_pairs(names: Sequence[str], limit: int = 12) -> list[tuple[str, str]]:
    """Which of a group to try with each other: all pairs, or beyond `limit` of them a star and a ring.

    Example: planned_pairs(["a", "b", "c"]) is [(a, b), (a, c), (b, c)].
    """
    if len(names) <= limit:
        return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    star = [(names[0], name) for name in names[1:]]
    return star + list(pairwise(names[1:]))


def nodes_of(members: Iterable[Member]) -> list[str]:
    """Their nodes, each once, in the order of the members."""
    return list(dict.fromkeys(member.node for member in members))
