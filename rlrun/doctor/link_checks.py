"""Checks of two nodes at a time: routes, ports, collectives."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.doctor.collective import NO_ANSWER, NOT_THERE
from rlrun.doctor.facts import LinkFacts, PairFacts
from rlrun.doctor.finding import Finding, Status
from rlrun.doctor.situation import Situation

STORE = "store"
FREE_PORT = "any port"
SLOW_MS = 200.0


def route(situation: Situation) -> Iterator[Finding]:
    """Check that routes to peers use the interface of the collectives, in both directions."""
    seen: set[tuple[str, str]] = set()
    for link in situation.facts.links:
        node = situation.facts.node(link.source)
        if node is None or link.source == link.target or (link.source, link.target) in seen:
            continue
        seen.add((link.source, link.target))
        used, wanted = node.interface_of(link.source_address), situation.interface(node)
        where = f"{link.source} -> {link.target}"
        if not link.source_address:
            cause, fix = f"there is no route to {link.address}", f"ip route get {link.address}"
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


def mtu(situation: Situation) -> Iterator[Finding]:
    """Check that packets of the interface's full size arrive, in both directions."""
    for facts in situation.facts.paths:
        path = facts.path
        if path.loses_packets:
            where, cause = f"{facts.source} -> {facts.target}", path.cause(facts.source, facts.target)
            yield Finding("mtu", Status.failed, where, cause, path.remedy(facts.source), f"{path.passes} bytes")


def ports(situation: Situation) -> Iterator[Finding]:
    """Check that ports of workers are free, and that the ports of Ray, store and collectives can be reached."""
    yield from _taken(situation)
    for link in situation.facts.links:
        if link.error is not None:
            fix = (
                _open_port(link) if link.error in ("refused", "no answer") else f"ip neigh; ip route get {link.address}"
            )
            yield Finding("ports", Status.failed, f"{link.source} -> {link.target}", _cause(link), fix, link.error)
        elif link.milliseconds > SLOW_MS:
            cause = f"a connection to the {link.purpose} took {link.milliseconds:.0f} ms"
            fix = f"ping -c 20 {link.address}"
            yield Finding("ports", Status.warning, f"{link.source} -> {link.target}", cause, fix)


def _taken(situation: Situation) -> Iterator[Finding]:
    for node in situation.facts.nodes:
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


def gloo(situation: Situation) -> Iterator[Finding]:
    """Check the all-reduce over Gloo between the nodes of the process groups."""
    yield from _collective(situation, "gloo")


def nccl(situation: Situation) -> Iterator[Finding]:
    """Check the all-reduce over NCCL between the nodes whose actor ranks have accelerators."""
    yield from _collective(situation, "nccl")


def _collective(situation: Situation, backend: str) -> Iterator[Finding]:
    for (source, target), error in outcomes(situation.facts.pairs, backend).items():
        if error is not None:
            cause = f"an all-reduce failed: {error}"
            where, fix = f"{source} -- {target}", _collective_fix(target, backend)
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
    found: dict[tuple[str, str], str | None] = {}
    for pair in pairs:
        if pair.backend == backend:
            known = found.get((pair.source, pair.target))
            specific = pair.error if known in (None, "no answer") else known
            found[pair.source, pair.target] = specific or known
    return found


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
