"""Every check of the doctor, as one table: what it looks at, where, and what fails it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlrun.doctor import (
    accelerator_checks,
    drawing_checks,
    equality_checks,
    link_checks,
    node_checks,
    simulator_checks,
)
from rlrun.doctor.finding import Finding, Status
from rlrun.doctor.situation import Situation, size
from rlrun.doctor.trials import members
from rlrun.system.errors import RunError


@dataclass(frozen=True)
class Check:
    """One row. `judge` yields what is wrong; `measured` says in a few words what was seen."""

    name: str
    looks_at: str
    where: str
    fails_when: str
    judge: Callable[[Situation], Iterator[Finding]]
    measured: Callable[[Situation], str]

    @property
    def row(self) -> str:
        """Its anchor in docs/troubleshooting.md. Example: "doctor-temp-disk"."""
        return f"doctor-{self.name.replace(' ', '-')}"


def _nodes(situation: Situation) -> str:
    count = len(situation.facts.nodes)
    return f"{count} node{'s' if count != 1 else ''}"


def _plan(situation: Situation) -> str:
    return f"{len(situation.plan.slots)} workers" if situation.plan else "no plan"


def _interfaces(situation: Situation) -> str:
    return ", ".join(f"{node.node} {situation.interface(node)}" for node in situation.facts.nodes[:8])


def _paths(situation: Situation) -> str:
    sizes = sorted({facts.path.passes for facts in situation.facts.paths})
    return f"{len(situation.facts.paths)} paths, {', '.join(map(str, sizes))} bytes" if sizes else "one node"


def _links(situation: Situation) -> str:
    links = situation.facts.links
    return (
        f"{len(links)} connections, at most {max(link.milliseconds for link in links):.0f} ms" if links else "one node"
    )


def _pairs(backend: str) -> Callable[[Situation], str]:
    def measured(situation: Situation) -> str:
        results = link_checks.outcomes(situation.facts.pairs, backend)
        if results:
            return f"{len(results)} pairs"
        planned = members(situation.config, situation.plan, backend) if situation.plan else []
        what = "accelerator" if backend == "nccl" else "process"
        return f"skipped: one {what}" if len(planned) == 1 else "not used between nodes"

    return measured


def _free(purpose: str) -> Callable[[Situation], str]:
    def measured(situation: Situation) -> str:
        free = [f.free_bytes for node in situation.facts.nodes for f in node.folders if f.purpose == purpose]
        return f"at least {size(min(free))} free" if free else "not looked at"

    return measured


def _memory(situation: Situation) -> str:
    free = [node.free_memory_bytes for node in situation.facts.nodes]
    return f"{size(min(free))} to {size(max(free))} free" if len(free) > 1 else f"{size(sum(free))} free"


def _gpus(situation: Situation) -> str:
    return f"{sum(len(node.gpus) for node in situation.facts.nodes)} GPUs"


def _versions(situation: Situation) -> str:
    names = ("python", "torch", "ray", "transformers", "rlrun")
    found = situation.facts.nodes[0].versions if situation.facts.nodes else {}
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def _inputs(situation: Situation) -> str:
    keys = dict.fromkeys(wanted.key for node in situation.facts.nodes for wanted in node.inputs)
    return ", ".join(keys) or "none given"


def _skew(situation: Situation) -> str:
    skews = [abs(link.skew_s) for link in situation.facts.links if link.skew_s is not None]
    return f"at most {max(skews):.3f} s apart" if skews else "one node"


def _simulators(situation: Situation) -> str:
    found = [node.simulator for node in situation.facts.nodes if node.simulator is not None]
    versions = dict.fromkeys(one.packages.get("omnigibson", "?") for one in found)
    return f"{len(found)} nodes, OmniGibson {', '.join(versions)}" if found else "no OmniGibson in this run"


CHECKS = (
    Check(
        "mtu",
        "whether packets of the interface's full size arrive; before anything else is asked of a node",
        "planned pairs, both ways; in every program from where it runs to each node, and on a node before it joins",
        "they get lost and smaller ones do not; the size that arrives is told",
        link_checks.mtu,
        _paths,
    ),
    Check(
        "answers",
        "whether a process can be started on the node",
        "every node",
        "none can, or it does not answer in time",
        node_checks.silent_nodes,
        _nodes,
    ),
    Check(
        "placement",
        "the plan of the run on the machines that are there",
        "the whole",
        "the planner refuses: too few accelerators on a node, RT cores, unlike accelerators in one process; or its "
        "budget: accelerator memory, host memory, room for the objects of a training step",
        accelerator_checks.placement,
        _plan,
    ),
    Check(
        "interface",
        "the interface that Gloo and NCCL are tied to",
        "every node",
        "it is missing or down, or reaches no other node (lo, docker0)",
        node_checks.interface,
        _interfaces,
    ),
    Check(
        "host name",
        "what the host name resolves to",
        "every node of several",
        "never; warns of loopback, and of a name that does not resolve",
        node_checks.host_name,
        _nodes,
    ),
    Check(
        "route",
        "from which address and interface packets to a peer start",
        "planned pairs, both ways",
        "there is no route, or it leaves by another interface than the collectives",
        link_checks.route,
        _links,
    ),
    Check(
        "ports",
        "cluster.store_port and the next one, before workers open them; TCP connections to Ray's ports, to the store "
        "of the process group, and to a port that was free",
        "the node of actor rank 0; planned pairs, both ways",
        "one is taken, refused, dropped, or answered by another node; warns when it takes over 200 ms",
        link_checks.ports,
        _links,
    ),
    Check(
        "gloo",
        "an all-reduce of two processes",
        "pairs of nodes with actor ranks, and with rollout workers under weight_sync.transport=collective; two of "
        "these processes where one node has them all",
        "it fails, or is not done within twice doctor.link_timeout_s after both are ready",
        link_checks.gloo,
        _pairs("gloo"),
    ),
    Check(
        "nccl",
        "an all-reduce of two accelerators",
        "the same pairs, where the plan chooses NCCL; on a node by itself two of its accelerators, none if it has one",
        "it fails, or is not done within a minute after both are ready",
        link_checks.nccl,
        _pairs("nccl"),
    ),
    Check(
        "temp disk",
        "Ray's temporary folder",
        "every node",
        "it cannot be written, or is over Ray's threshold of 95 % (on a machine of its own: warns)",
        node_checks.temp_disk,
        _free("temp"),
    ),
    Check(
        "spill disk",
        "Ray's spill folder",
        "every node",
        "it cannot be written, or is over Ray's threshold (on a machine of its own: warns); warns below 20 MB/s",
        node_checks.spill_disk,
        _free("spill"),
    ),
    Check(
        "shared memory",
        "/dev/shm against Ray's object store",
        "every node",
        "the store does not fit (on a machine of its own: warns)",
        node_checks.shared_memory,
        _free("shared memory"),
    ),
    Check(
        "run disk",
        "run and cache folder",
        "every node",
        "one cannot be written; warns below 500 MB",
        node_checks.run_disk,
        _free("cache"),
    ),
    Check(
        "shared folders",
        "whether a file that one node writes is seen by the others",
        "nodes that exchange checkpoints, demonstrations or policies",
        "it is not seen",
        equality_checks.shared_folders,
        _nodes,
    ),
    Check(
        "memory",
        "free host memory against the largest worker that loads",
        "every node",
        "it does not fit",
        accelerator_checks.memory,
        _memory,
    ),
    Check(
        "accelerators",
        "the planned accelerators, driver, CUDA of torch",
        "nodes with accelerators",
        "one is missing, torch has no CUDA, or the driver is too old for it; warns of drivers that differ",
        accelerator_checks.accelerators,
        _gpus,
    ),
    Check(
        "accelerator memory",
        "free device memory, who holds it, and its spread",
        "the planned accelerators",
        "less is free than the plan needs; warns of processes left over and of a spread over 10 %",
        accelerator_checks.accelerator_memory,
        _gpus,
    ),
    Check(
        "versions",
        "Python, torch, ray, transformers, rlrun and its sources",
        "every node; torch and transformers where models run",
        "rlrun, ray, torch or transformers differ, or the minor version of another; warns of smaller differences",
        equality_checks.versions,
        _versions,
    ),
    Check(
        "inputs",
        "policy, dataset, checkpoint and interpreter that the configuration names",
        "the nodes that read them",
        "one is missing, or differs from that of another node",
        equality_checks.inputs,
        _inputs,
    ),
    Check(
        "renderer",
        "who draws the cameras of the embedded world, and how long a picture takes",
        "nodes with env workers under env.simulator=embedded",
        "nothing can be drawn; warns of a driver that hangs, of ray casting, of OpenGL on the CPU of a node with GPUs",
        drawing_checks.renderer,
        drawing_checks.measured,
    ),
    Check(
        "simulator interpreter",
        "the Python that is to run OmniGibson",
        "nodes with env workers under env.simulator=omnigibson",
        "it does not start, is neither 3.10 nor 3.11, or lacks numpy or msgpack",
        simulator_checks.interpreter,
        _simulators,
    ),
    Check(
        "simulator packages",
        "OmniGibson, Isaac Sim and bddl in that interpreter",
        "the same nodes",
        "one is missing, or OmniGibson is older than 3.7; warns of a version that was made for another Python",
        simulator_checks.packages,
        _simulators,
    ),
    Check(
        "simulator graphics",
        "RT cores, driver, Vulkan driver file, libraries that Kit loads",
        "the same nodes, and the accelerators of env workers",
        "one is missing, or the driver is older than 535",
        simulator_checks.graphics,
        _simulators,
    ),
    Check(
        "simulator data",
        "the BEHAVIOR data set, its key, and the scene of the run",
        "the same nodes",
        "one is not there",
        simulator_checks.data,
        _simulators,
    ),
    Check(
        "simulator licence",
        "whether NVIDIA's licence agreement was accepted",
        "the same nodes",
        "OMNI_KIT_ACCEPT_EULA is not YES",
        simulator_checks.licence,
        _simulators,
    ),
    Check(
        "clock",
        "clocks of two nodes, over their link",
        "planned pairs",
        "they are more than 60 s apart; warns beyond 5 s",
        equality_checks.clock,
        _skew,
    ),
    Check(
        "environment",
        "SGLang's legacy switches, GLOO_SOCKET_IFNAME with a list or ^, proxies, hidden devices, niceness of workers, "
        "settings of NCCL and Ray that differ",
        "every node, in the environment of its Ray",
        "never; warns",
        node_checks.environment,
        _nodes,
    ),
)


def check_names(skip: list[str]) -> None:
    """Raises RunError for a name that no check has."""
    names = [check.name for check in CHECKS]
    for name in skip:
        if name not in names:
            raise RunError(
                f"There is no check '{name}'.", "doctor.skip", name, remedy=f"The checks are {', '.join(names)}."
            )


def row_of(finding: Finding) -> str:
    """The anchor of its check in docs/troubleshooting.md."""
    return next(check.row for check in CHECKS if check.name == finding.check)


def judge(situation: Situation, skip: list[str]) -> list[Finding]:
    """All findings, in the order of the table: what is wrong, or one row that says what was seen."""
    findings: list[Finding] = []
    for check in CHECKS:
        if check.name in skip:
            continue
        wrong = list(check.judge(situation))
        findings += wrong or [Finding(check.name, Status.ok, "", "", "", check.measured(situation))]
    return findings


def markdown_table() -> str:
    """The table of docs/doctor.md."""
    rows = [f"| `{c.name}` | {c.looks_at} | {c.where} | {c.fails_when} |" for c in CHECKS]
    return "\n".join(["| check | looks at | where | fails when |", "|---|---|---|---|", *rows])
