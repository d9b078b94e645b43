"""The plan for what is left when nodes are lost: the planner again, with the nodes that live. Pure."""

from __future__ import annotations

from collections.abc import Collection

from rlrun.config.schema import RunConfig
from rlrun.placement.budget import budget
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan, Slot
from rlrun.placement.planner import plan
from rlrun.placement.request import refused


def place(slot: Slot) -> tuple[str, tuple[int, ...]]:
    """Where a worker sits. Example: place(slot) == ("sim-0", (3,))."""
    return slot.node, slot.accelerators


def replanned(config: RunConfig, old: Plan, living: Inventory, lost: Collection[str]) -> Plan:
    """The plan on the nodes that live now. Raises RunError (exit status 3) where it does not fit on them.

    lost: names of nodes that went since `old` was made; one that came back is among the living as well. Actor ranks
    keep their places unless one of them is lost: they hold what was learned, and can only move together.
    """
    fresh = plan(config, living)
    budget(config, fresh, living)
    actors = list(zip(old.of("actor"), fresh.of("actor"), strict=True))
    moved = [after for before, after in actors if place(before) != place(after)]
    if moved and not any(before.node in lost for before, _ in actors):
        raise refused(
            f"{moved[0].name}, which is alive, would have to move to {moved[0].node}.",
            "placement.roles.actor",
            cause="Without the lost node, accelerators are counted differently.",
            remedy="Give the actor ranks a node group of their own: their places then depend on no other node.",
        )
    return fresh
