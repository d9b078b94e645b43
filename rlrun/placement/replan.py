"""A new plan after nodes are lost: runs the planner on the nodes that are alive. Pure."""

from __future__ import annotations

from collections.abc import Collection

from rlrun.config.schema import RunConfig
from rlrun.placement.budget import budget
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan, Slot
from rlrun.placement.planner import plan
from rlrun.placement.request import refused


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
