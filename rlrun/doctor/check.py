"""Interface of the doctor's checks: their input, and their findings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from rlrun.config.schema import RunConfig
from rlrun.doctor.facts import ClusterFacts, NodeFacts
from rlrun.doctor.node_request import NodeRequest
from rlrun.placement.budget import Budget
from rlrun.placement.plan import Plan, Slot
from rlrun.system.errors import RunError

T = TypeVar("T")


class Status(Enum):
    ok = "ok"
    warning = "warning"  # the run works, but may be slow or fragile
    failed = "failed"  # the run would stop, hang or compute wrong results


@dataclass(frozen=True)
class Finding:
    """One row of the doctor's table.

    Example: Finding("temp disk", Status.failed, "sim-0", "/tmp is 97 % full: Ray creates no objects …",
    "rm -rf /tmp/ray/session_*", "1.2 GB free of 40.0 GB")
    """

    check: str
    status: Status
    where: str  # a node, "a -> b" for a link, or "" for all nodes
    cause: str
    fix: str = ""  # a command or a setting to paste; "" if there is nothing to do
    value: str = ""  # the measured value
    is_late: bool = False  # a trial did not end in time, and nothing else is wrong: an overloaded machine may be why

    def __str__(self) -> str:
        place = f" on {self.where}" if self.where else ""
        return f"{self.check}{place}: {self.cause}"


def failures(findings: list[Finding]) -> list[Finding]:
    """Return the findings that stop a run."""
    return [finding for finding in findings if finding.status is Status.failed]


@dataclass(frozen=True)
class ClusterState:
    """The read-only input of every check."""

    config: RunConfig
    requests: tuple[NodeRequest, ...]
    facts: ClusterFacts
    plan: Plan | None
    budget: Budget | None
    refusal: RunError | None = None  # raised by the planner (then `plan` is None) or by its budget

    @property
    def has_several_nodes(self) -> bool:
        return len(self.requests) > 1

    def request(self, node: str) -> NodeRequest:
        """Return the request of a node. Raises StopIteration for an unknown node."""
        return next(node_request for node_request in self.requests if node_request.node == node)

    def slots(self, node: str) -> tuple[Slot, ...]:
        """Return the planned workers of a node."""
        return tuple(slot for slot in self.plan.slots if slot.node == node) if self.plan else ()

    def simulators(self, kind: type[T]) -> Iterator[tuple[NodeFacts, T]]:
        """Yield the nodes whose simulator was measured as facts of this type, with these.

        An interpreter that is missing is told by the check of optional packages, and by no other.
        """
        for node in self.facts.nodes:
            if isinstance(node.simulator, kind) and getattr(node.simulator, "is_started", True):
                yield node, node.simulator

    def interface(self, node: NodeFacts) -> str | None:
        """Return the interface of a node's collectives, or None if no interface owns the node's address."""
        return self.request(node.node).interface or node.interface_of(node.address)


def size(num_bytes: float) -> str:
    """Example: size(1.25e9) == "1.2 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1e3:.1f} kB"


@dataclass(frozen=True)
class Check:
    """One row of the table. `run` yields faults; `measured` summarizes the measurement of a check that passed."""

    name: str
    where: str
    fails_when: str
    run: Callable[[ClusterState], Iterator[Finding]]
    measured: Callable[[ClusterState], str]

    @property
    def purpose(self) -> str:
        """The first sentence of the docstring of `run`."""
        return inspect.cleandoc(self.run.__doc__ or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")

    @property
    def row(self) -> str:
        """The anchor of the check in docs/troubleshooting.md. Example: "doctor-temp-disk"."""
        return f"doctor-{self.name.replace(' ', '-')}"
