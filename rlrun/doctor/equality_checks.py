"""Checks across nodes: versions, inputs, shared folders and clocks agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rlrun.doctor.facts import LinkFacts
from rlrun.doctor.finding import Finding, Status
from rlrun.doctor.situation import Situation, size

MAX_SKEW_S = 5.0  # above it the nodes' timelines do not align, and certificates begin to fail
STRICT = ("rlrun", "rlrun sources", "ray", "torch", "transformers")  # pickled objects and collectives cross nodes
LEARNERS_ONLY = ("torch", "torch CUDA", "transformers", "sglang")  # a simulation node needs none of them


def versions(situation: Situation) -> Iterator[Finding]:
    """Check that nodes have the same Python, and the same versions of the packages that they use."""
    nodes = situation.facts.nodes
    for package in dict.fromkeys(name for node in nodes for name in node.versions):
        users = nodes
        if package in LEARNERS_ONLY:
            users = tuple(n for n in nodes if set(situation.assignment(n.node).workers) != {"env"})
        found = {node.node: node.versions.get(package, "missing") for node in users}
        odd, usual = _odd(found)
        if package == "rlrun sources" and any(_differs(node.versions, "rlrun", nodes[0].versions) for node in nodes):
            continue  # the different version is reported already
        for node in odd:
            status = Status.failed if package in STRICT or not _same_minor(found[node], usual) else Status.warning
            fix = (
                f"pip install '{package}=={usual}'"
                if not package.startswith(("python", "rlrun"))
                else (
                    "install the same commit of rlrun there" if package.startswith("rlrun") else f"use Python {usual}"
                )
            )
            cause = f"{package} is {found[node]}, elsewhere {usual}"
            yield Finding("versions", status, node, cause, fix, found[node])


def _odd(values: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the nodes that differ from the usual value, and that value: the most frequent, on a tie the first."""
    if not values:
        return [], ""
    usual = Counter(values.values()).most_common(1)[0][0]
    return [node for node, value in values.items() if value != usual], usual


def _differs(versions: Mapping[str, str], package: str, others: Mapping[str, str]) -> bool:
    return versions.get(package) != others.get(package)


def _same_minor(found: str, usual: str) -> bool:
    return found.split(".")[:2] == usual.split(".")[:2]


def fit(situation: Situation) -> Iterator[Finding]:
    """Check that the data set and the policy folder fit the world, as far as it is known before it runs."""
    found = situation.facts.fit
    if found is None:
        return
    for refusal in found.refusals:
        cause = f"{refusal.message} {refusal.cause or ''}".strip()
        yield Finding("data and policy", Status.failed, "", cause, refusal.remedy or "")
    for warning in found.warnings:
        yield Finding("data and policy", Status.warning, "", warning)


def inputs(situation: Situation) -> Iterator[Finding]:
    """Check that models and datasets exist, and are equal, on the nodes that read them."""
    for key in dict.fromkeys(wanted.key for node in situation.facts.nodes for wanted in node.inputs):
        found = {node.node: wanted for node in situation.facts.nodes for wanted in node.inputs if wanted.key == key}
        there = {node: facts for node, facts in found.items() if facts.num_files}
        for node in [node for node in found if node not in there]:
            path = found[node].path
            source = next((f"rsync -a {peer}:{path}/ {path}/" for peer in there), f"{key}=<another path>")
            yield Finding("inputs", Status.failed, node, f"{key}: there is nothing at {path}", source)
        odd, _ = _odd({node: facts.digest for node, facts in there.items()})
        for node in odd:
            peer = next(peer for peer in there if peer not in odd)
            cause = (
                f"{key}: {found[node].path} has {found[node].num_files} files of {size(found[node].num_bytes)} with "
                f"digest {found[node].digest}; on {peer} {found[peer].num_files} of {size(found[peer].num_bytes)} "
                f"with {found[peer].digest}"
            )
            fix = f"rsync -a --delete {peer}:{found[peer].path}/ {found[node].path}/"
            yield Finding("inputs", Status.failed, node, cause, fix, found[node].digest)


def shared_folders(situation: Situation) -> Iterator[Finding]:
    """Check that nodes see the files that others write: checkpoints, demonstrations, the first policy."""
    facts = {node.node: node for node in situation.facts.nodes}
    for purpose, key, nodes in _sharing(situation):
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


def _sharing(situation: Situation) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (purpose, key, nodes that must see the same folder)."""
    if situation.plan is None or not situation.has_several_nodes:
        return
    config = situation.config
    learners = [a.node for a in situation.assignments if {"actor", "rollout"} & set(a.workers)]
    if len(learners) > 1:
        yield "run", "output_dir", learners
    if config.policy.path is None and config.checkpoint.resume in (None, "auto"):
        producers = [a.node for a in situation.assignments if "env" in a.workers] if config.demos.path is None else []
        yield "cache", "cache_dir", list(dict.fromkeys(learners + producers))


def clock(situation: Situation) -> Iterator[Finding]:
    """Compare the clocks of nodes over their links."""
    worst: dict[str, LinkFacts] = {}
    for link in situation.facts.links:
        if link.skew_s is not None and abs(link.skew_s) > MAX_SKEW_S:
            worst.setdefault(_off(situation, link), link)
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


def _off(situation: Situation, link: LinkFacts) -> str:
    """Return the node that disagrees with most others; on a tie, the one that is not the first of the cluster."""
    first = situation.assignments[0].node
    off = [
        {other.source, other.target}
        for other in situation.facts.links
        if other.skew_s is not None and abs(other.skew_s) > MAX_SKEW_S
    ]
    counts = {node: sum(node in pair for pair in off) for node in (link.source, link.target)}
    if counts[link.source] == counts[link.target]:
        return link.target if link.source == first else link.source
    return max(counts, key=lambda node: counts[node])
