"""Checks between nodes: equal versions and settings, and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlrun.doctor.check import ClusterState, Finding, Status, size
from rlrun.doctor.collective import NO_ANSWER, NOT_THERE
from rlrun.doctor.facts import LinkFacts, NodeFacts, PairFacts
from rlrun.system.torch_index import INDEX

MAX_SKEW_S = 5.0  # above it the nodes' timelines do not align, and certificates begin to fail
STRICT = ("rlrun", "rlrun sources", "ray", "torch", "transformers")  # pickled objects and collectives cross nodes
NEEDED = ("rlrun", "ray", "torch", "transformers")  # other missing packages are reported by "optional packages"
LEARNERS_ONLY = ("torch", "torch CUDA", "transformers", "sglang")  # a simulation node needs none of them
STORE = "store"
FREE_PORT = "any port"
SLOW_MS = 200.0


def versions(cluster: ClusterState) -> Iterator[Finding]:
    """Check that nodes have the same Python, torch, ray, transformers, rlrun and sources of it, where they use them."""
    nodes = cluster.facts.nodes
    for package in dict.fromkeys(name for node in nodes for name in node.versions):
        if package == "rlrun sources" and any(_differs(node.versions, "rlrun", nodes[0].versions) for node in nodes):
            continue  # the different version is reported already
        installed = _installed(cluster, package)
        odd, usual = _odd(installed)
        for node in odd:
            version = installed[node]
            status = Status.failed if package in STRICT or not _same_minor(version, usual) else Status.warning
            cause = f"{package} is {version}, elsewhere {usual}"
            yield Finding("versions", status, node, cause, _to_equal(package, usual), version)
    yield from _missing(cluster)
    yield from _unfit(cluster)


def _installed(cluster: ClusterState, package: str) -> dict[str, str]:
    """Return the versions of a package on the nodes whose workers need it and that have it, by node."""
    return {node.node: node.versions[package] for node in _users(cluster, package) if package in node.versions}


def _missing(cluster: ClusterState) -> Iterator[Finding]:
    """Report the packages that a node's workers need and that it lacks."""
    for package in NEEDED:
        _, usual = _odd(_installed(cluster, package))
        for node in _users(cluster, package):
            if package not in node.versions and cluster.request(node.node).workers:
                cause = f"{package} is not installed, and the workers there need it"
                yield Finding("versions", Status.failed, node.node, cause, _to_equal(package, usual))


def _users(cluster: ClusterState, package: str) -> tuple[NodeFacts, ...]:
    """Return the nodes whose workers need a package."""
    nodes = cluster.facts.nodes
    if package not in LEARNERS_ONLY:
        return nodes
    return tuple(node for node in nodes if set(cluster.request(node.node).workers) != {"env"})


def _to_equal(package: str, version: str) -> str:
    """Return the remedy by which a node gets the version of a package that the other nodes have; "": none has it."""
    if package.startswith("rlrun"):
        return "install the same commit of rlrun there"
    if package == "python":
        return f"use Python {version}"
    if package == "torch CUDA":  # a build of torch
        return f"pip install --force-reinstall torch --index-url {INDEX}/cu{version.replace('.', '')}"
    number, _, build = version.partition("+")
    if build:
        return f"pip install '{package}=={number}' --index-url {INDEX}/{build}"
    return f"pip install '{package}=={version}'" if version else f"pip install {package}"


def _unfit(cluster: ClusterState) -> Iterator[Finding]:
    """Warn of versions that rlrun does not run with, as the installation of another package may leave them."""
    for name, allowed in _requirements().items():
        for node in cluster.facts.nodes:
            version = node.versions.get(name)
            if version is not None and not allowed.contains(version, prereleases=True):
                cause = f"{name} is {version}, and rlrun needs {allowed}"
                fix = f"pip install '{name}{allowed}'; give the package that wants another an interpreter of its own"
                yield Finding("versions", Status.warning, node.node, cause, fix, version)


def _requirements() -> dict[str, SpecifierSet]:
    """Return the versions that rlrun itself requires, by package; empty if it is not installed."""
    try:
        words = metadata.requires("rlrun") or []
    except metadata.PackageNotFoundError:
        return {}
    return {
        requirement.name: requirement.specifier for requirement in map(Requirement, words) if requirement.marker is None
    }


def _odd(values: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the nodes that differ from the usual value, and that value: the most frequent, on a tie the first."""
    if not values:
        return [], ""
    usual = Counter(values.values()).most_common(1)[0][0]
    return [node for node, value in values.items() if value != usual], usual


def _differs(versions: Mapping[str, str], package: str, others: Mapping[str, str]) -> bool:
    return versions.get(package) != others.get(package)


def _same_minor(version: str, usual: str) -> bool:
    return version.split(".")[:2] == usual.split(".")[:2]


def fit(cluster: ClusterState) -> Iterator[Finding]:
    """Check that data set and policy folder fit the world: cameras, pictures, numbers, units, rate, sentences."""
    report = cluster.facts.fit
    if report is None:
        return
    for refusal in report.refusals:
        cause = f"{refusal.message} {refusal.cause or ''}".strip()
        yield Finding("data and policy", Status.failed, "", cause, refusal.remedy or "")
    for warning in report.warnings:
        yield Finding("data and policy", Status.warning, "", warning)


def inputs(cluster: ClusterState) -> Iterator[Finding]:
    """Check that policy, dataset and checkpoint exist and are equal, where needed."""
    for key in dict.fromkeys(wanted.key for node in cluster.facts.nodes for wanted in node.inputs):
        copies = {node.node: wanted for node in cluster.facts.nodes for wanted in node.inputs if wanted.key == key}
        there = {node: facts for node, facts in copies.items() if facts.num_files}
        for node in [node for node in copies if node not in there]:
            path = copies[node].path
            source = next((f"rsync -a {peer}:{path}/ {path}/" for peer in there), f"{key}=<another path>")
            yield Finding("inputs", Status.failed, node, f"{key}: there is nothing at {path}", source)
        odd, _ = _odd({node: facts.digest for node, facts in there.items()})
        for node in odd:
            peer = next(peer for peer in there if peer not in odd)
            cause = (
                f"{key}: {copies[node].path} has {copies[node].num_files} files of {size(copies[node].num_bytes)} with "
                f"digest {copies[node].digest}; on {peer} {copies[peer].num_files} of {size(copies[peer].num_bytes)} "
                f"with {copies[peer].digest}"
            )
            fix = f"rsync -a --delete {peer}:{copies[peer].path}/ {copies[node].path}/"
            yield Finding("inputs", Status.failed, node, cause, fix, copies[node].digest)


def shared_folders(cluster: ClusterState) -> Iterator[Finding]:
    """Check that nodes see the files that others write: checkpoints, demonstrations, the first policy."""
    facts = {node.node: node for node in cluster.facts.nodes}
    for purpose, key, nodes in _sharing(cluster):
        for node in nodes:
            folder = next((f for f in facts[node].folders if f.purpose == purpose), None) if node in facts else None
            unseen = [peer for peer in nodes if folder is not None and peer in facts and peer not in folder.seen]
            if folder is not None and unseen:
                yield Finding(
                    "shared folders",
                    Status.failed,
                    node,
                    f"what {', '.join(unseen[:4])} writes to {folder.path} does not appear there",
                    f"{key}=<a folder on a file system that all nodes mount>",
                )


def _sharing(cluster: ClusterState) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (purpose, key, nodes that must see the same folder)."""
    if cluster.plan is None or not cluster.has_several_nodes:
        return
    config = cluster.config
    learners = [a.node for a in cluster.requests if {"actor", "rollout"} & set(a.workers)]
    if len(learners) > 1:
        yield "run", "output_dir", learners
    if config.policy.path is None and config.checkpoint.resume in (None, "auto"):
        producers = [a.node for a in cluster.requests if "env" in a.workers] if config.demos.path is None else []
        yield "cache", "cache_dir", list(dict.fromkeys(learners + producers))


def clock(cluster: ClusterState) -> Iterator[Finding]:
    """Compare the clocks of two nodes over their link."""
    worst: dict[str, LinkFacts] = {}
    for link in cluster.facts.links:
        if link.skew_s is not None and abs(link.skew_s) > MAX_SKEW_S:
            worst.setdefault(_off(cluster, link), link)
    for node, link in worst.items():
        skew_s = link.skew_s if link.target == node else -(link.skew_s or 0.0)
        peer = link.source if link.target == node else link.target
        yield Finding(
            "clock",
            Status.failed if abs(skew_s or 0.0) > 60 else Status.warning,
            node,
            f"its clock is {abs(skew_s or 0.0):.0f} s {'ahead of' if (skew_s or 0.0) > 0 else 'behind'} that of {peer}",
            "timedatectl set-ntp true",
            f"{skew_s:+.1f} s",
        )


def _off(cluster: ClusterState, link: LinkFacts) -> str:
    """Return the node that disagrees with most others; on a tie, the one that is not the first of the cluster."""
    first = cluster.requests[0].node
    off = [
        {other.source, other.target}
        for other in cluster.facts.links
        if other.skew_s is not None and abs(other.skew_s) > MAX_SKEW_S
    ]
    counts = {node: sum(node in pair for pair in off) for node in (link.source, link.target)}
    if counts[link.source] == counts[link.target]:
        return link.target if link.source == first else link.source
    return max(counts, key=lambda node: counts[node])


def route(cluster: ClusterState) -> Iterator[Finding]:
    """Check that routes to peers use the interface of the collectives, in both directions."""
    seen: set[tuple[str, str]] = set()
    for link in cluster.facts.links:
        node = cluster.facts.node(link.source)
        if node is None or link.source == link.target or (link.source, link.target) in seen:
            continue
        seen.add((link.source, link.target))
        used = node.interface_of(link.source_address)
        wanted = cluster.interface(node)
        where = f"{link.source} -> {link.target}"
        if not link.source_address:
            cause = f"there is no route to {link.address}"
            fix = f"ip route get {link.address}"
            yield Finding("route", Status.failed, where, cause, fix)
        elif wanted is not None and used != wanted:
            yield Finding(
                "route",
                Status.failed,
                where,
                f"packets to {link.address} leave by {used} ({link.source_address}), but the collectives are bound to "
                f"{wanted}",
                f"placement.nodes.<group of {link.source}>.interface={used}; look with: ip route get {link.address}",
                str(used),
            )


def mtu(cluster: ClusterState) -> Iterator[Finding]:
    """Check that packets of the interface's full size arrive, in both directions; this runs before all others."""
    for facts in cluster.facts.paths:
        path = facts.path
        if path.loses_packets:
            where = f"{facts.source} -> {facts.target}"
            cause = path.cause(facts.source, facts.target)
            yield Finding("mtu", Status.failed, where, cause, path.remedy(facts.source), f"{path.passes} bytes")


def ports(cluster: ClusterState) -> Iterator[Finding]:
    """Check that cluster.store_port and the next are free, and that ports of Ray, store and collectives are reached."""
    yield from _taken(cluster)
    for link in cluster.facts.links:
        if link.error is not None:
            fix = (
                _open_port(link) if link.error in ("refused", "no answer") else f"ip neigh; ip route get {link.address}"
            )
            yield Finding("ports", Status.failed, f"{link.source} -> {link.target}", _cause(link), fix, link.error)
        elif link.milliseconds > SLOW_MS:
            cause = f"a connection to the {link.purpose} took {link.milliseconds:.0f} ms"
            fix = f"ping -c 20 {link.address}"
            yield Finding("ports", Status.warning, f"{link.source} -> {link.target}", cause, fix)


def _taken(cluster: ClusterState) -> Iterator[Finding]:
    for node in cluster.facts.nodes:
        for port in node.ports:
            if port.holder is not None:
                cause = f"port {port.port} ({port.key}) is taken by {port.holder}"
                fix = (
                    f"on {node.node}: ss -ltnp 'sport = :{port.port}'; or cluster.store_port=<another>, or null for any"
                )
                yield Finding("ports", Status.failed, node.node, cause, fix, port.holder)


def _cause(link: LinkFacts) -> str:
    what = f"port {link.port} of {link.address} ({link.purpose})"
    if link.error == "no answer":
        return f"{what} does not answer: a firewall drops packets, or the network path is cut"
    if link.error == "refused":
        return f"{what} is refused: a firewall rejects connections, or no program listens there"
    return f"{what}: {link.error}"


def _open_port(link: LinkFacts) -> str:
    wanted = "1024-65535" if link.purpose == FREE_PORT else str(link.port)
    source = f"ip saddr {link.source_address} " if link.source_address else ""
    return f"on {link.target}: nft insert rule inet filter input {source}tcp dport {wanted} accept"


def gloo(cluster: ClusterState) -> Iterator[Finding]:
    """Check the all-reduce over Gloo between the nodes of the process groups."""
    yield from _collective(cluster, "gloo")


def nccl(cluster: ClusterState) -> Iterator[Finding]:
    """Check the all-reduce over NCCL between the nodes whose actor ranks have accelerators."""
    yield from _collective(cluster, "nccl")


def _collective(cluster: ClusterState, backend: str) -> Iterator[Finding]:
    for (source, target), error in outcomes(cluster.facts.pairs, backend).items():
        if error is not None:
            cause = f"an all-reduce failed: {error}"
            where = f"{source} -- {target}"
            fix = _collective_fix(target, backend)
            is_late = error == NO_ANSWER or NOT_THERE in error
            yield Finding(backend, Status.failed, where, cause, fix, error, is_late)


def _collective_fix(target: str, backend: str) -> str:
    debug = "; for NCCL's own log: NCCL_DEBUG=INFO" if backend == "nccl" else ""
    return (
        f"on {target}, and the other way round: nft insert rule inet filter input tcp dport 1024-65535 accept; "
        f"placement.nodes.<group>.interface=<the one that owns the route>{debug}"
    )


def outcomes(pairs: tuple[PairFacts, ...], backend: str) -> dict[tuple[str, str], str | None]:
    """Map (source, target) to the pair's error, the more specific one of its two sides; None: both succeeded."""
    errors: dict[tuple[str, str], str | None] = {}
    for pair in pairs:
        if pair.backend == backend:
            known = errors.get((pair.source, pair.target))
            specific = pair.error if known in (None, "no answer") else known
            errors[pair.source, pair.target] = specific or known
    return errors


def matrix(pairs: tuple[PairFacts, ...], backend: str) -> list[list[str]]:
    """Return rows of cells: a header row of node names, then per node its name and milliseconds or the error."""
    results = outcomes(pairs, backend)
    nodes = list(dict.fromkeys(node for pair in results for node in pair))
    slowest = {
        pair: max(p.milliseconds for p in pairs if (p.source, p.target) == pair and p.backend == backend)
        for pair in results
    }
    rows = [["", *nodes]]
    for a in nodes:
        cells = []
        for b in nodes:
            pair = (a, b) if (a, b) in results else (b, a)
            failed = results.get(pair)
            cells.append("" if pair not in results else failed or f"{slowest[pair]:.0f} ms")
        rows.append([a, *cells])
    return rows
