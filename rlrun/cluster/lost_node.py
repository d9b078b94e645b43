"""Finds a new plan after a node has left the cluster: on the remaining nodes, or once a node has joined."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from rlrun.cluster.ray_node import RayNode
from rlrun.config.schema import RunConfig
from rlrun.observability.telemetry import mark_alive
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan
from rlrun.placement.replan import replanned
from rlrun.system.errors import ExitStatus, RunError

_POLL_S = 1.0
_WORD_S = 10.0  # between two words on where the lost nodes are, since a link may flap
_KEY = "recovery.node_wait_s"


def next_plan(
    config: RunConfig,
    old: Plan,
    lost: Collection[str],
    living: Callable[[], list[RayNode]],
    measure: Callable[[Sequence[RayNode]], Inventory],
    note: Callable[[str], None],
    is_stopped: Callable[[], bool],
    whereabouts: Callable[[], str] = str,
) -> tuple[Plan, dict[str, RayNode]]:
    """Return the first plan that fits on the living nodes, and these nodes by name.

    living: returns the nodes of the cluster. measure: returns their inventory. note: receives a sentence if it has to
    wait, and why. is_stopped: returns whether a person or the scheduler asked to stop, which ends the wait.
    whereabouts: returns what has become of the lost nodes, in words, which are noted when they change.
    Raises RunError: exit status 7 after `recovery.node_wait_s`, 75 if asked to stop.
    """
    names, wait_s = ", ".join(sorted(lost)), config.recovery.node_wait_s
    end = time.monotonic() + wait_s
    seen: set[str] = set()  # node ids of the last attempt
    refusal: RunError | None = None
    told: set[str] = set()
    elsewhere, next_word = "", time.monotonic()

    def tell(text: str) -> None:
        if text not in told and wait_s > 0:
            told.add(text)
            note(text)

    while True:
        nodes = living()
        if {node.node_id for node in nodes} != seen:
            seen = {node.node_id for node in nodes}
            try:
                return replanned(config, old, measure(nodes), lost), {node.name: node for node in nodes}
            except RunError as error:
                if error.exit_status is not ExitStatus.placement:
                    seen = set()  # a node left while it was measured: try again
                    tell(f"node {names} is lost, and the others are not measured yet: {error.message}; again")
                elif refusal is None or refusal.exit_status is not ExitStatus.placement:
                    tell(f"node {names} is lost, and without it: {error.message} Waiting up to {wait_s:.0f} s for it")
                refusal = error
        found = whereabouts()
        if wait_s > 0 and found not in ("", elsewhere) and time.monotonic() >= next_word:
            elsewhere, next_word = found, time.monotonic() + _WORD_S
            note(found)
        if is_stopped():
            raise RunError(
                f"Asked to stop while node {names} was lost.",
                remedy="Resume the run from its last checkpoint.",
                exit_status=ExitStatus.preempted,
            )
        if time.monotonic() >= end:
            raise _gave_up(names, wait_s, refusal)
        mark_alive()
        time.sleep(_POLL_S)


def _gave_up(names: str, wait_s: float, refusal: RunError | None) -> RunError:
    waited = f", and has not come back within {wait_s:.0f} s" if wait_s else ""
    return RunError(
        f"Node {names} has left the cluster{waited}; the run does not fit on what is left.",
        key=_KEY,
        value=wait_s,
        cause=f"Its power, its Ray or its link is gone. {refusal.message if refusal else ''}",
        remedy=f"Start Ray on {names} again, then resume the run. To go on without "
        "the node, leave it out of `placement`.",
        exit_status=ExitStatus.worker_lost,
    )
