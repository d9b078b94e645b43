"""The input of all checks: the configuration, the plan or the planner's refusal, and the measurements."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.schema import RunConfig
from rlrun.doctor.assignment import Assignment
from rlrun.doctor.facts import ClusterFacts, NodeFacts
from rlrun.placement.budget import Budget
from rlrun.placement.plan import Plan, Slot
from rlrun.system.errors import RunError


@dataclass(frozen=True)
class Situation:
    """The read-only input of every check."""

    config: RunConfig
    assignments: tuple[Assignment, ...]
    facts: ClusterFacts
    plan: Plan | None
    budget: Budget | None
    refusal: RunError | None = None  # raised by the planner (then `plan` is None) or by its budget

    @property
    def has_several_nodes(self) -> bool:
        return len(self.assignments) > 1

    def assignment(self, node: str) -> Assignment:
        """Return the assignment of a node. Raises StopIteration for an unknown node."""
        return next(assignment for assignment in self.assignments if assignment.node == node)

    def slots(self, node: str) -> tuple[Slot, ...]:
        """Return the planned workers of a node."""
        return tuple(slot for slot in self.plan.slots if slot.node == node) if self.plan else ()

    def interface(self, node: NodeFacts) -> str | None:
        """Return the interface of a node's collectives, or None if no interface owns the node's address."""
        return self.assignment(node.node).interface or node.interface_of(node.address)


def size(num_bytes: float) -> str:
    """Example: size(1.25e9) == "1.2 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1e3:.1f} kB"
