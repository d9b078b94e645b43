"""All checks of the doctor in one table: where each looks, and when it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from rlrun.config.registry import SIMULATORS
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import SimulatorSpec, simulator_spec
from rlrun.doctor import accelerator_checks, cross_node_checks, node_checks
from rlrun.doctor.check import Check, ClusterState, Finding, Status, size
from rlrun.doctor.measure import inspection_of, inspections
from rlrun.doctor.trials import members
from rlrun.placement.verdict import idle_cards, idle_roles
from rlrun.system.errors import RunError
from rlrun.system.machine_load import load_factor


def _nodes(cluster: ClusterState) -> str:
    count = len(cluster.facts.nodes)
    return f"{count} node{'s' if count != 1 else ''}"


def _plan(cluster: ClusterState) -> str:
    if cluster.plan is None:
        return "no plan"
    idle = (*idle_cards(cluster.plan), *(text for _, text in idle_roles(cluster.config, cluster.plan)))
    return "; ".join([f"{len(cluster.plan.slots)} workers", *(one.rstrip(".") for one in idle)])


def _interfaces(cluster: ClusterState) -> str:
    return ", ".join(f"{node.node} {cluster.interface(node)}" for node in cluster.facts.nodes[:8])


def _paths(cluster: ClusterState) -> str:
    sizes = sorted({facts.path.passes for facts in cluster.facts.paths})
    return f"{len(cluster.facts.paths)} paths, {', '.join(map(str, sizes))} bytes" if sizes else "one node"


def _links(cluster: ClusterState) -> str:
    links = cluster.facts.links
    return (
        f"{len(links)} connections, at most {max(link.milliseconds for link in links):.0f} ms" if links else "one node"
    )


def _pairs(backend: str) -> Callable[[ClusterState], str]:
    def measured(cluster: ClusterState) -> str:
        results = cross_node_checks.outcomes(cluster.facts.pairs, backend)
        if results:
            return f"{len(results)} pairs"
        planned = members(cluster.config, cluster.plan, backend) if cluster.plan else []
        what = "accelerator" if backend == "nccl" else "process"
        return f"skipped: one {what}" if len(planned) == 1 else "not used between nodes"

    return measured


def _free(purpose: str) -> Callable[[ClusterState], str]:
    def measured(cluster: ClusterState) -> str:
        free = [f.free_bytes for node in cluster.facts.nodes for f in node.folders if f.purpose == purpose]
        return f"at least {size(min(free))} free" if free else "not looked at"

    return measured


def _memory(cluster: ClusterState) -> str:
    free = [_rounded_down(node.free_memory_bytes) for node in cluster.facts.nodes]
    if len(free) == 1:
        return f"{size(free[0])} free of {size(cluster.facts.nodes[0].memory_bytes)}"
    return f"{size(min(free, default=0))} to {size(max(free, default=0))} free"


def _rounded_down(num_bytes: int) -> int:
    """Return the bytes in whole tenths of a gigabyte, rounded down."""
    return num_bytes // 10**8 * 10**8 if num_bytes >= 10**9 else num_bytes


def _gpus(cluster: ClusterState) -> str:
    return f"{sum(len(node.gpus) for node in cluster.facts.nodes)} GPUs"


def _versions(cluster: ClusterState) -> str:
    names = ("python", "torch", "ray", "transformers", "rlrun")
    found = cluster.facts.nodes[0].versions if cluster.facts.nodes else {}
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def _inputs(cluster: ClusterState) -> str:
    keys = dict.fromkeys(wanted.key for node in cluster.facts.nodes for wanted in node.inputs)
    return ", ".join(keys) or "none given"


def _fit(cluster: ClusterState) -> str:
    found = cluster.facts.fit
    return "not on this machine, or none given" if found is None else "; ".join(found.notes) or "they fit"


def _packages(cluster: ClusterState) -> str:
    found = [facts for node in cluster.facts.nodes for facts in node.packages]
    names = dict.fromkeys(facts.request.package for facts in (*found, *cluster.facts.driver_packages))
    return ", ".join(names) or "none needed"


def _skew(cluster: ClusterState) -> str:
    skews = [abs(link.skew_s) for link in cluster.facts.links if link.skew_s is not None]
    return f"at most {max(skews):.3f} s apart" if skews else "one node"


CHECKS = (
    Check(
        "mtu",
        "planned pairs, both ways; in every program from its node to each other node, and on a node before it joins",
        "large packets are lost and smaller ones arrive; reports the largest size that arrives",
        cross_node_checks.mtu,
        _paths,
    ),
    Check(
        "answers",
        "every node",
        "the process does not start, or does not answer in time",
        node_checks.unresponsive_nodes,
        _nodes,
    ),
    Check(
        "placement",
        "the whole cluster",
        "the planner refuses: too few accelerators on a node, RT cores, unlike accelerators in one process; or its "
        "budget: accelerator memory, host memory, room for the objects of a training step. What stays idle is shown",
        accelerator_checks.placement,
        _plan,
    ),
    Check(
        "interface",
        "every node",
        "it is missing or down, or reaches no other node (lo, docker0)",
        node_checks.interface,
        _interfaces,
    ),
    Check(
        "host name",
        "every node of several",
        "never; warns about loopback, and about a name that does not resolve",
        node_checks.host_name,
        _nodes,
    ),
    Check(
        "route",
        "planned pairs, both ways",
        "there is no route, or it uses another interface than the collectives",
        cross_node_checks.route,
        _links,
    ),
    Check(
        "ports",
        "the node of actor rank 0; planned pairs, both ways",
        "a port is taken, or a connection is refused, dropped or answered by another node; warns above 200 ms",
        cross_node_checks.ports,
        _links,
    ),
    Check(
        "gloo",
        "pairs of nodes with actor ranks, and with rollout workers under weight_sync.transport=collective; two "
        "processes if one of several nodes has all of them",
        "it fails, or does not finish within twice doctor.link_timeout_s after both are ready; that time grows with "
        "the load, and only warns above 2 processes per core",
        cross_node_checks.gloo,
        _pairs("gloo"),
    ),
    Check(
        "nccl",
        "the same pairs, if the plan chooses NCCL; two accelerators of a single node; skipped for a single accelerator",
        "it fails, or does not finish within a minute after both are ready",
        cross_node_checks.nccl,
        _pairs("nccl"),
    ),
    Check(
        "temp disk",
        "every node",
        "it cannot be written, or is fuller than Ray's threshold of 95 % (on a single machine: warns)",
        node_checks.temp_disk,
        _free("temp"),
    ),
    Check(
        "spill disk",
        "every node",
        "it cannot be written, or is fuller than Ray's threshold (on a single machine: warns); warns below 20 MB/s",
        node_checks.spill_disk,
        _free("spill"),
    ),
    Check(
        "shared memory",
        "every node",
        "the store does not fit (on a single machine: warns)",
        node_checks.shared_memory,
        _free("shared memory"),
    ),
    Check(
        "run disk",
        "every node",
        "one of them cannot be written; warns below 500 MB",
        node_checks.run_disk,
        _free("cache"),
    ),
    Check(
        "shared folders",
        "nodes that exchange checkpoints, demonstrations or policies",
        "a node does not see it",
        cross_node_checks.shared_folders,
        _nodes,
    ),
    Check(
        "memory",
        "every node",
        "the worker does not fit",
        accelerator_checks.memory,
        _memory,
    ),
    Check(
        "accelerators",
        "nodes with accelerators",
        "one is missing, torch has no CUDA, or the driver is too old for it; warns about drivers that differ",
        accelerator_checks.accelerators,
        _gpus,
    ),
    Check(
        "accelerator memory",
        "the planned accelerators",
        "less is free than the plan needs; warns about leftover processes and about a spread over 10 %",
        accelerator_checks.accelerator_memory,
        _gpus,
    ),
    Check(
        "versions",
        "every node; torch and transformers where models run",
        "rlrun, ray, torch or transformers differ or are missing, or another package differs in its minor version; "
        "warns about smaller differences, and about versions that rlrun does not run with",
        cross_node_checks.versions,
        _versions,
    ),
    Check(
        "optional packages",
        "the nodes whose workers use them; trackers: where the run is started, by rlrun.doctor",
        "one cannot be imported, or its interpreter is missing; warns if that takes over half a minute",
        node_checks.optional_packages,
        _packages,
    ),
    Check(
        "inputs",
        "the nodes that read them",
        "one is missing, or a policy, dataset or checkpoint differs between nodes",
        cross_node_checks.inputs,
        _inputs,
    ),
    Check(
        "data and policy",
        "where the doctor runs, by rlrun.doctor; a run compares them once its simulators are up",
        "they do not fit each other, or cannot be read; warns about what may be meant",
        cross_node_checks.fit,
        _fit,
    ),
    Check(
        "clock",
        "planned pairs",
        "the clocks differ by more than 60 s; warns above 5 s",
        cross_node_checks.clock,
        _skew,
    ),
    Check(
        "environment",
        "every node, in the environment of its Ray processes",
        "never; warns",
        node_checks.environment,
        _nodes,
    ),
)


def all_checks() -> tuple[Check, ...]:
    """The table, and the checks of every installed simulator."""
    return _with_checks_of(SIMULATORS.installed())


def own_checks() -> tuple[Check, ...]:
    """The table, and the checks of rlrun's own simulators."""
    return _with_checks_of(SIMULATORS.shipped())


def _with_checks_of(specs: Iterable[SimulatorSpec]) -> tuple[Check, ...]:
    return tuple(dict.fromkeys([*CHECKS, *(check for one in inspections(specs) for check in one.checks)]))


def _checks_of(config: RunConfig) -> tuple[Check, ...]:
    """The table, and the checks of the run's simulator."""
    inspection = inspection_of(simulator_spec(config.env))
    return (*CHECKS, *(inspection.checks if inspection else ()))


def check_names(skip: list[str]) -> None:
    """Raise RunError if a name is not that of a check."""
    names = [check.name for check in all_checks()]
    for name in skip:
        if name not in names:
            raise RunError(
                f"There is no check '{name}'.",
                "doctor.skip",
                name,
                remedy=f"The checks are {', '.join(names)}.",
            )


def row_of(finding: Finding) -> str:
    """Return the anchor of the finding's check in docs/troubleshooting.md."""
    return next(check.row for check in all_checks() if check.name == finding.check)


def run_checks(cluster: ClusterState, skip: list[str]) -> list[Finding]:
    """Return all findings in the order of the table: the faults of a check, or one "ok" row with its measurement."""
    findings: list[Finding] = []
    for check in _checks_of(cluster.config):
        if check.name in skip:
            continue
        wrong = list(check.run(cluster))
        findings += [_excused(finding, cluster.facts.load) for finding in wrong] or [
            Finding(check.name, Status.ok, "", "", "", check.measured(cluster))
        ]
    return findings


def _excused(finding: Finding, load: float) -> Finding:
    """Return a finding, as a warning if its trial was only late while a host had more to do than it can."""
    if not finding.is_late or load_factor(load) == 1:
        return finding
    cause = f"{finding.cause}: perhaps only because of the load of {load:.0f} processes per core"
    return dataclasses.replace(finding, status=Status.warning, cause=cause)


def markdown_table() -> str:
    """Return the table of docs/doctor.md."""
    rows = [f"| `{c.name}` | {c.purpose} | {c.where} | {c.fails_when} |" for c in own_checks()]
    return "\n".join(["| check | does what | where | fails when |", "|---|---|---|---|", *rows])
