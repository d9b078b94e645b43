"""The node group of a machine, determined on that machine before a cluster exists."""

from __future__ import annotations

from rlrun.placement.inventory import NodeInfo
from rlrun.placement.planner import fits
from rlrun.placement.request import GroupRequest, Request, refused


def group_of(node: NodeInfo, request: Request, wanted: str | None) -> GroupRequest:
    """Return the group `wanted`, else the first group that the node fits. Raises RunError if there is none.

    The later plan may put the node into another group of the same kind; then only the directories of that group
    differ.
    """
    names = [group.name for group in request.groups]
    if wanted is not None:
        if wanted not in names:
            raise refused(
                f"There is no node group '{wanted}'.",
                "node.group",
                wanted,
                remedy=f"Groups: {', '.join(names)}.",
            )
        return request.groups[names.index(wanted)]
    for group in request.groups:
        if fits(node, group):
            return group
    raise refused(
        f"Node {node} fits none of the groups {', '.join(names)}.",
        "placement.nodes",
        cause="Groups choose their nodes by `accelerator` and `names`.",
        remedy="Correct the groups, or name the group of this node: node.group=NAME.",
    )


def num_expected(request: Request) -> int:
    """Return the number of nodes that the groups expect; a group without a count expects at least one."""
    return sum(group.count or max(1, len(group.names)) for group in request.groups)
