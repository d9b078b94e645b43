"""Which node group a machine belongs to, asked on that machine before there is a cluster."""

from __future__ import annotations

from rlrun.placement.inventory import NodeInfo
from rlrun.placement.planner import fits
from rlrun.placement.request import GroupRequest, Request, refused


def group_of(node: NodeInfo, request: Request, wanted: str | None) -> GroupRequest:
    """The group `wanted`, else the first that the node fits. Raises RunError when there is none.

    The plan, made later, may give the node to another group of the same kind; then only that group's
    directories differ.
    """
    names = [group.name for group in request.groups]
    if wanted is not None:
        if wanted not in names:
            raise refused(
                f"There is no node group '{wanted}'.", "node.group", wanted, remedy=f"Groups: {', '.join(names)}."
            )
        return request.groups[names.index(wanted)]
    for group in request.groups:
        if fits(node, group):
            return group
    raise refused(
        f"Node {node} fits none of the groups {', '.join(names)}.",
        "placement.nodes",
        cause="Groups choose their nodes by `accelerator` and `names`.",
        remedy="Correct the groups, or say which one this node belongs to: node.group=NAME.",
    )


def num_expected(request: Request) -> int:
    """Nodes that the groups count; a group without a count has at least one."""
    return sum(group.count or max(1, len(group.names)) for group in request.groups)
