"""A node has left the cluster: the run goes on with what is left, or waits until the node, or another, is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from rlrun.cluster.ray_node import RayNode
from rlrun.config.schema import RunConfig
from rlrun.observability.telemetry import mark_alive
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan
from rlrun.placement.replan import replanned
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

_POLL_S = 1.0
_KEY = "recovery.node_wait_s"


def next_plan(
    config: RunConfig,
    old: Plan,
    lost: Collection[str],
    living: Callable[[], list[RayNode]],
    measure: Callable[[Sequence[RayNode]], Inventory],
    note: Callable[[str], None],
    is_stopped: Callable[[], bool],
) -> tuple[Plan, dict[str, RayNode]]:
    """The first plan that fits on the living nodes, and these by name.

    living, measure: the nodes of the cluster now, and what they have. note: told, once, why there is a wait.
    is_stopped: whether a person or the scheduler asked to stop, which ends the wait.
    Raises RunError: exit status 7 after `recovery.node_wait_s`, 75 where asked to stop.
    """
    names, wait_s = ", ".join(sorted(lost)), config.recovery.node_wait_s
    end = time.monotonic() + wait_s
    seen: set[str] = set()  # node ids of the last attempt
    refusal: RunError | None = None
    while True:
        nodes = living()
        if {node.node_id for node in nodes} != seen:
            seen = {node.node_id for node in nodes}
            try:
                return replanned(config, old, measure(nodes), lost), {node.name: node for node in nodes}
            except RunError as error:
                if error.exit_status is not ExitStatus.placement:
                    seen = set()  # a node that went while it was asked: ask again
                elif refusal is None and wait_s > 0:
                    note(f"node {names} is lost, and without it: {error.message} Waiting up to {wait_s:.0f} s for it")
                refusal = error
        if is_stopped():
            raise RunError(
                f"Asked to stop while node {names} was lost.",
                remedy="Start the same run again: it resumes from its last checkpoint.",
                exit_status=ExitStatus.preempted,
            )
        if time.monotonic() >= end:
            raise _given_up(names, wait_s, refusal)
        mark_alive()
        time.sleep(_POLL_S)


def _given_up(names: str, wait_s: float, refusal: RunError | None) -> RunError:
    waited = f", and was not back within {wait_s:.0f} s" if wait_s else ""
    return RunError(
        f"Node {names} has left the cluster{waited}; the run does not fit on what is left.",
        key=_KEY,
        value=wait_s,
        cause=f"Its power, its Ray or its link is gone. {refusal.message if refusal else ''}",
        remedy=f"Start Ray on {names} again, then the same run: it resumes from its last checkpoint. To go on without "
        "the node, leave it out of `placement`.",
        exit_status=ExitStatus.worker_lost,
    )
