"""What the checks judge: the configuration, the machines, the plan or why there is none, and what was measured."""

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
    """Read by every check, changed by none."""

    config: RunConfig
    assignments: tuple[Assignment, ...]
    facts: ClusterFacts
    plan: Plan | None
    budget: Budget | None
    refusal: RunError | None = None  # of the planner, and then there is no plan; or of its budget

    @property
    def has_several_nodes(self) -> bool:
        return len(self.assignments) > 1

    def assignment(self, node: str) -> Assignment:
        """Raises StopIteration for a node that is not looked at."""
        return next(assignment for assignment in self.assignments if assignment.node == node)

    def slots(self, node: str) -> tuple[Slot, ...]:
        """The workers that are to run on a node."""
        return tuple(slot for slot in self.plan.slots if slot.node == node) if self.plan else ()

    def interface(self, node: NodeFacts) -> str | None:
        """The interface that the collectives of a node will use; None: no interface owns the node's address."""
        return self.assignment(node.node).interface or node.interface_of(node.address)


def size(num_bytes: float) -> str:
    """Example: size(1.25e9) == "1.2 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1e3:.1f} kB"
