"""Runs the doctor: measures all nodes at the same time (through Ray if there is a cluster), then judges."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlrun.config.schema import RunConfig
from rlrun.doctor.assignment import Assignment, assignments
from rlrun.doctor.checks import check_names, judge, row_of
from rlrun.doctor.facts import ClusterFacts
from rlrun.doctor.finding import Finding, Status, failures
from rlrun.doctor.inspector import Inspector
from rlrun.doctor.node_checks import ELSEWHERE
from rlrun.doctor.situation import Situation
from rlrun.placement.budget import budget
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan
from rlrun.placement.planner import plan
from rlrun.placement.request import ROLES
from rlrun.placement.this_machine import interfaces
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

if TYPE_CHECKING:
    from rlrun.cluster.ray_node import RayNode

logger = logging.getLogger(__name__)


def examine(
    config: RunConfig,
    inventory: Inventory,
    nodes: Sequence[RayNode],
    is_thorough: bool,
    roles: Sequence[str] = ROLES,
) -> tuple[Situation, list[Finding]]:
    """Plan, measure the nodes of the plan (all nodes if the planner refuses), and judge. Starts no workers."""
    check_names(config.doctor.skip)
    planned, sums, refusal = None, None, None
    try:
        planned = plan(config, inventory, roles)
        sums = budget(config, planned, inventory)
    except RunError as error:
        refusal = error  # measure all nodes if there is no plan, those of the plan if there is no budget
    jobs = assignments(config, inventory, planned, is_thorough or len(nodes) > 1)
    facts = _measure(config, jobs, planned, nodes, is_thorough)
    situation = Situation(config, tuple(jobs), facts, planned, sums, refusal)
    return situation, judge(situation, config.doctor.skip)


def require_fitness(
    config: RunConfig, inventory: Inventory, nodes: Sequence[RayNode], roles: Sequence[str] = ROLES
) -> list[str]:
    """Run the doctor before a run with workers of `roles`. Returns warnings.

    Raises RunError (exit status 4) if a check failed.
    """
    _, findings = examine(config, inventory, nodes, is_thorough=False, roles=roles)
    failed = failures(findings)
    if failed:
        first = failed[0]
        rest = "".join(f"\n          also {finding}" for finding in failed[1:])
        raise RunError(
            f"The machines are not fit for this run: {first.check}{f' on {first.where}' if first.where else ''}.",
            cause=first.cause + rest,
            remedy=f"{first.fix}\n          For the full report run python -m rlrun.doctor with the same arguments. To "
            f"skip the check: doctor.skip=['{first.check}']",
            exit_status=ExitStatus.doctor,
            row=row_of(first),
        )
    return [str(finding) for finding in findings if finding.status is Status.warning]


def _measure(
    config: RunConfig, jobs: Sequence[Assignment], planned: Plan | None, nodes: Sequence[RayNode], is_thorough: bool
) -> ClusterFacts:
    if not nodes and is_thorough and config.placement.inventory is not None:
        return _in_inventory(jobs)
    if not nodes:
        return ClusterFacts(tuple(_alone(job) for job in jobs[:1]))
    from rlrun.cluster.inspection import RayInspection

    inspection = RayInspection(config, jobs, nodes)
    try:
        return inspection.measure(planned)
    finally:
        inspection.close()


def _in_inventory(jobs: Sequence[Assignment]) -> ClusterFacts:
    """Measure this machine if the inventory lists it; the others can be measured only from themselves."""
    host = socket.gethostname()
    addresses = [address for interface in interfaces() for address in interface.addresses]
    here = [job for job in jobs if job.node in (host, host.partition(".")[0]) or job.address in addresses]
    why = f"{ELSEWHERE}this is {host}, and no Ray cluster was named"
    return ClusterFacts(
        tuple(_alone(job) for job in here[:1]), unresponsive={job.node: why for job in jobs if job not in here}
    )


def _alone(job: Assignment) -> Any:
    inspector = Inspector(job)
    try:
        return inspector.measure()
    finally:
        inspector.close()
