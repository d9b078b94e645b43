"""Preflight checks: measures all nodes at the same time (through Ray if there is a cluster), then runs the checks."""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.config.schema import RunConfig
from rlrun.data.fit_report import CompatibilityReport
from rlrun.doctor.check import ClusterState, Finding, Status, failures
from rlrun.doctor.checks import check_names, row_of, run_checks
from rlrun.doctor.facts import ClusterFacts, PairFacts
from rlrun.doctor.inspector import Inspector
from rlrun.doctor.node_checks import ELSEWHERE
from rlrun.doctor.node_request import NodeRequest, node_requests
from rlrun.doctor.optional_packages import driver_packages, open_packages
from rlrun.doctor.trials import groups, jobs
from rlrun.placement.fitting import Fitting, fit_run
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan
from rlrun.placement.this_machine import interfaces
from rlrun.placement.verdict import planned_fit
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.machine_load import load_factor, local_load
from rlrun.system.network import LOOPBACK, free_port

if TYPE_CHECKING:
    from rlrun.cluster.ray_nodes import RayNode

logger = logging.getLogger(__name__)


def check_cluster(
    config: RunConfig, inventory: Inventory, nodes: Sequence[RayNode], fit: CompatibilityReport | None = None
) -> tuple[ClusterState, list[Finding]]:
    """Plan, measure the nodes of the plan (all nodes if the planner refuses), and check them. Starts no workers.

    fit: of data set, policy and the started world; None: they are compared without starting it.
    """
    fit = planned_fit(config) if fit is None else fit
    check_names(config.doctor.skip)
    try:
        fitting = fit_run(config, inventory)
    except RunError as refusal:
        return check_nodes(config, inventory, nodes, is_thorough=True, refusal=refusal, fit=fit)
    return check_nodes(fitting.config, inventory, nodes, is_thorough=True, fitting=fitting, fit=fit)


def check_nodes(
    config: RunConfig,
    inventory: Inventory,
    nodes: Sequence[RayNode],
    is_thorough: bool,
    fitting: Fitting | None = None,
    refusal: RunError | None = None,
    fit: CompatibilityReport | None = None,
) -> tuple[ClusterState, list[Finding]]:
    """Measure the nodes of the plan, or all of them after a refusal, and check them."""
    planned = fitting.plan if fitting is not None else None
    sums = fitting.budget if fitting is not None else None
    requests = node_requests(config, inventory, planned, is_thorough or len(nodes) > 1)
    facts = _measure(config, requests, planned, nodes, is_thorough)
    packages = open_packages(driver_packages(config) if is_thorough else ())
    facts = dataclasses.replace(facts, driver_packages=packages, driver_load=local_load(), fit=fit)
    cluster = ClusterState(config, tuple(requests), facts, planned, sums, refusal)
    return cluster, run_checks(cluster, config.doctor.skip)


def preflight(fitting: Fitting, inventory: Inventory, nodes: Sequence[RayNode]) -> list[str]:
    """Run the doctor before a run with this plan. Returns warnings.

    Raises RunError (exit status 4) if a check failed.
    """
    _, findings = check_nodes(fitting.config, inventory, nodes, is_thorough=False, fitting=fitting)
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
    config: RunConfig,
    requests: Sequence[NodeRequest],
    planned: Plan | None,
    nodes: Sequence[RayNode],
    is_thorough: bool,
) -> ClusterFacts:
    if not nodes and is_thorough and config.placement.inventory is not None:
        return _in_inventory(config, requests, planned)
    if not nodes:
        return _alone(config, requests[0], planned)
    from rlrun.cluster.inspection import RayInspection

    inspection = RayInspection(config, requests, nodes)
    try:
        return inspection.measure(planned)
    finally:
        inspection.close()


def _in_inventory(config: RunConfig, requests: Sequence[NodeRequest], planned: Plan | None) -> ClusterFacts:
    """Measure this machine if the inventory lists it; the others can be measured only from themselves."""
    host = socket.gethostname()
    addresses = [address for interface in interfaces() for address in interface.addresses]
    here = [
        request
        for request in requests
        if request.node in (host, host.partition(".")[0]) or request.address in addresses
    ]
    why = f"{ELSEWHERE}this is {host}, and no Ray cluster was named"
    facts = _alone(config, here[0], planned) if here else ClusterFacts(())
    return dataclasses.replace(facts, unresponsive={request.node: why for request in requests if request not in here})


def _alone(config: RunConfig, request: NodeRequest, planned: Plan | None) -> ClusterFacts:
    """Measure this machine, which no cluster has, and try its collectives."""
    inspector = Inspector(request)
    try:
        node = inspector.measure()
        pairs: list[PairFacts] = []
        for backend, group in groups(config, planned, {node.node: node}).items():
            port = free_port(LOOPBACK)
            link_s = config.doctor.link_timeout_s
            factor = load_factor(local_load())
            here = jobs(group, backend, lambda _: "lo", LOOPBACK, port, link_s, factor)
            pairs += inspector.all_reduce(here[node.node]) if here else []
        return ClusterFacts((node,), pairs=tuple(pairs))
    finally:
        inspector.close()
