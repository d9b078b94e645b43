"""Checks of one node at a time: interface, host name, disks, shared memory, environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

from rlrun.doctor.check import ClusterState, Finding, Status, size
from rlrun.doctor.facts import FolderFacts, NodeFacts
from rlrun.doctor.optional_packages import LIMIT_S
from rlrun.placement.node_environment import NICENESS

FOLDER_KEYS = {"run": "output_dir", "cache": "cache_dir"}  # by the purpose of a folder
RAY_THRESHOLD = 0.95  # Ray's default; a fuller disk takes no spilled objects
THRESHOLD_VARIABLE = "RAY_local_fs_capacity_threshold"
SLOW_BYTES_PER_S = 20e6  # below it an object store of some GB takes minutes to spill
SMALL_BYTES = 500e6  # room for logs and a checkpoint of a small policy
LATE = "no answer within"  # why a node is not measured that is only slow
ELSEWHERE = "you are not on it: "  # why a node is not measured
VIRTUAL = ("docker", "br-", "virbr", "veth", "cni", "flannel")  # prefixes of interfaces that reach no other node
LEGACY_SGLANG = ("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


def unresponsive_nodes(cluster: ClusterState) -> Iterator[Finding]:
    """Report nodes that did not answer."""
    for node, why in cluster.facts.unresponsive.items():
        fix = "ray status; then see the node's Ray logs"
        if why.startswith(ELSEWHERE):
            fix = f"run this command on {node}, or name a running Ray cluster with that node in cluster.address"
        yield Finding("answers", Status.failed, node, why, fix, is_late=why.startswith(LATE))


def interface(cluster: ClusterState) -> Iterator[Finding]:
    """Check that the interface of Gloo and NCCL exists, is up, and reaches other nodes."""
    for node in cluster.facts.nodes:
        wanted = cluster.request(node.node).interface
        name = cluster.interface(node)
        has = ", ".join(f"{i.name} ({i.addresses[0]})" for i in node.interfaces if i.addresses and i.is_up)
        fix = f"placement.nodes.<group of {node.node}>.interface=<one of these>, or leave the key out"
        interface_facts = next((i for i in node.interfaces if i.name == name), None)
        problem = None
        if interface_facts is None:
            named = f"there is no interface '{wanted}'" if wanted else f"no interface owns {node.address}"
            problem = f"{named}; it has {has}"
        elif not interface_facts.is_up or not interface_facts.addresses:
            problem = f"interface {name} is down or has no address; it has {has}"
            fix = f"ip link set {name} up"
        elif cluster.has_several_nodes and (name == "lo" or str(name).startswith(VIRTUAL)):
            problem = f"interface {name} reaches no other node; it has {has}"
        if problem:
            yield Finding("interface", Status.failed, node.node, problem, fix, has)


def host_name(cluster: ClusterState) -> Iterator[Finding]:
    """Check the address of the host name, which other programs advertise as their own."""
    if not cluster.has_several_nodes:
        return
    for node in cluster.facts.nodes:
        is_loopback = any(ipaddress.ip_address(address).is_loopback for address in node.host_addresses)
        if not is_loopback and node.host_addresses:
            continue
        means = f"resolves to {', '.join(node.host_addresses)}" if node.host_addresses else "does not resolve"
        yield Finding(
            "host name",
            Status.warning,
            node.node,
            f"{node.host_name} {means}: rlrun binds Gloo and NCCL to {cluster.interface(node)} instead, but other "
            "nodes cannot reach a program that advertises its host name",
            _to_resolve(node, is_loopback),
            ", ".join(node.host_addresses),
        )


def _to_resolve(node: NodeFacts, is_loopback: bool) -> str:
    """Return the command by which /etc/hosts gives the host name the node's address, and no address of loopback."""
    add = f"echo '{node.address} {node.host_name}' >> /etc/hosts"
    if not is_loopback:
        return add
    name = node.host_name.replace(".", r"\.")
    return rf"sed -i -E '/^(127\.|::1)/s/\s{name}(\s|$)/\1/g' /etc/hosts; {add}"


def optional_packages(cluster: ClusterState) -> Iterator[Finding]:
    """Check interpreters, and that SGLang, bitsandbytes, flash-attn and trackers can be imported where used."""
    packages = [(node.node, facts) for node in cluster.facts.nodes for facts in node.packages]
    packages += [("", facts) for facts in cluster.facts.driver_packages]
    for where, facts in packages:
        wanted = facts.request
        if facts.is_late:
            cause = f"{wanted.package}, which {wanted.key} needs, was not imported within {LIMIT_S:.0f} s"
            yield Finding("optional packages", Status.warning, where, cause, f"{wanted.python} -c '{wanted.statement}'")
        elif not facts.is_started:
            fix = f"{wanted.key}=<the path of a Python on this node>"
            yield Finding("optional packages", Status.failed, where, f"{wanted.key}: {facts.error}", fix)
        elif facts.error:
            cause = f"{wanted.package}, which {wanted.key} needs, cannot be imported in {wanted.python}: {facts.error}"
            yield Finding("optional packages", Status.failed, where, cause, wanted.fix)


# --- disks --------------------------------------------------------------------------------------


def temp_disk(cluster: ClusterState) -> Iterator[Finding]:
    """Check the folder of Ray's sessions and sockets."""
    for node, folder in _folders(cluster, "temp"):
        yield from _writable("temp disk", node, folder)
        yield from _below_threshold("temp disk", cluster, node, folder, "cluster.temp_dir=<a folder with room>")


def spill_disk(cluster: ClusterState) -> Iterator[Finding]:
    """Check the folder for objects that do not fit into the store: if both are full, a run waits for ever.

    The `placement` check compares its free space with the budget of a training step.
    """
    for node, folder in _folders(cluster, "spill"):
        yield from _writable("spill disk", node, folder)
        yield from _below_threshold(
            "spill disk", cluster, node, folder, "placement.nodes.<group>.spill_dirs=[<folder>]"
        )
        speed = folder.write_bytes_per_s
        if speed is not None and speed < SLOW_BYTES_PER_S:
            yield Finding(
                "spill disk",
                Status.warning,
                node.node,
                f"{folder.path} writes {size(speed)}/s: spilling a gigabyte would take {1e9 / speed:.0f} s",
                "placement.nodes.<group>.spill_dirs=[<a local disk>]",
                f"{size(speed)}/s",
            )


def shared_memory(cluster: ClusterState) -> Iterator[Finding]:
    """Check that Ray's object store fits into /dev/shm, which often has 64 MB in containers."""
    for node, folder in _folders(cluster, "shared memory"):
        yield from _writable("shared memory", node, folder)
        store = node.object_store_bytes
        room = folder.total_bytes if store is not None else folder.free_bytes  # a running store holds its part already
        store = store or cluster.config.cluster.object_store_bytes
        if room < store:
            yield Finding(
                "shared memory",
                _severity(cluster),
                node.node,
                f"/dev/shm has {size(room)} for an object store of {size(store)}: Ray would put it on disk",
                "mount -o remount,size=<bytes> /dev/shm; for containers: docker run --shm-size=…; or a smaller store: "
                f"cluster.object_store_bytes={int(0.8 * room)}",
                f"{size(room)}",
            )


def run_disk(cluster: ClusterState) -> Iterator[Finding]:
    """Check the folders for logs, checkpoints and generated datasets."""
    for purpose, key in (("run", "output_dir"), ("cache", "cache_dir")):
        for node, folder in _folders(cluster, purpose):
            yield from _writable("run disk", node, folder)
            if folder.error is None and folder.free_bytes < SMALL_BYTES:
                yield Finding(
                    "run disk",
                    Status.warning,
                    node.node,
                    f"{folder.path} has {size(folder.free_bytes)} left",
                    f"{key}=<a folder with room>",
                    size(folder.free_bytes),
                )


def _folders(cluster: ClusterState, purpose: str) -> Iterator[tuple[NodeFacts, FolderFacts]]:
    for node in cluster.facts.nodes:
        for folder in node.folders:
            if folder.purpose == purpose:
                yield node, folder


def _writable(check: str, node: NodeFacts, folder: FolderFacts) -> Iterator[Finding]:
    if folder.error is not None:
        key = FOLDER_KEYS.get(folder.purpose)
        other = f"; or point {key} to another disk" if key else ""
        fix = f"df -h {folder.path}; ls -ld {folder.path}{other}"
        yield Finding(check, Status.failed, node.node, f"{folder.path} cannot be written: {folder.error}", fix)


def _threshold(node: NodeFacts) -> float:
    return float(node.environment.get(THRESHOLD_VARIABLE, RAY_THRESHOLD))


def _severity(cluster: ClusterState) -> Status:
    """Return warning for a single machine, which works without spilling and with a store on disk; else failed."""
    return Status.failed if cluster.has_several_nodes else Status.warning


def _below_threshold(
    check: str, cluster: ClusterState, node: NodeFacts, folder: FolderFacts, fix: str
) -> Iterator[Finding]:
    used = 1 - folder.free_bytes / max(1, folder.total_bytes)
    if folder.error is None and used > _threshold(node):
        yield Finding(
            check,
            _severity(cluster),
            node.node,
            f"{folder.path} is {used:.1%} full; over {_threshold(node):.0%} Ray creates no objects that need spilling",
            f"du -xsh {folder.path}/* | sort -h | tail; or {fix}",
            f"{size(folder.free_bytes)} free of {size(folder.total_bytes)}",
        )


# --- environment --------------------------------------------------------------------------------


def environment(cluster: ClusterState) -> Iterator[Finding]:
    """Report harmful variables of the shell that started Ray: of SGLang, Gloo, NCCL, proxies, devices, niceness."""
    for node in cluster.facts.nodes:
        for cause, fix in (*_switches(node), *_folders_of_shell(node), *_devices(node), *_niceness(node)):
            yield Finding("environment", Status.warning, node.node, cause, fix)
        if cluster.has_several_nodes:
            yield from _proxies(cluster, node)
    yield from _differences(cluster)


def _switches(node: NodeFacts) -> Iterator[tuple[str, str]]:
    for name in LEGACY_SGLANG:
        if name in node.environment:
            yield (
                f"{name} is exported; it disables SGLang's memory check up to 0.5.6, ENABLES it from 0.5.7 to 0.5.17, "
                "and has no effect later. rlrun sets the right variable and removes this one in its workers",
                f"unset {name}",
            )
    if "NCCL_SOCKET_IFNAME" in node.environment:
        yield (
            f"NCCL_SOCKET_IFNAME={node.environment['NCCL_SOCKET_IFNAME']} is exported; rlrun overrides it in its "
            "workers with the interface of the node",
            "unset NCCL_SOCKET_IFNAME; placement.nodes.<group>.interface chooses another interface",
        )
    order = node.environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if order != "PCI_BUS_ID":
        yield (
            f"CUDA_DEVICE_ORDER={order} is exported; the plan counts accelerators as nvidia-smi does, and gives its "
            "workers PCI_BUS_ID",
            "unset CUDA_DEVICE_ORDER, and write CUDA_VISIBLE_DEVICES with the numbers of nvidia-smi",
        )
    interfaces = node.environment.get("GLOO_SOCKET_IFNAME")
    if interfaces is None:
        return
    problem = None
    if "," in interfaces or interfaces.startswith("^"):
        problem = "Gloo accepts one name, not a list or ^"
    elif interfaces not in [i.name for i in node.interfaces]:
        problem = "no interface of this node has that name"
    if problem:
        yield (
            f"GLOO_SOCKET_IFNAME={interfaces}: {problem}. rlrun overrides it in its workers",
            "unset GLOO_SOCKET_IFNAME",
        )


def _folders_of_shell(node: NodeFacts) -> Iterator[tuple[str, str]]:
    for name in ("TMPDIR", "RAY_TMPDIR"):
        value = node.environment.get(name)
        if value and not any(folder.path == value for folder in node.folders) and not Path(value).is_absolute():
            yield f"{name}={value} is not an absolute path", f"unset {name}"


def _devices(node: NodeFacts) -> Iterator[tuple[str, str]]:
    visible = node.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or "SLURM_JOB_ID" in node.environment:
        return  # SLURM sets it to the job's share of the node
    if len([number for number in visible.split(",") if number]) < len(node.gpus):
        yield (
            f"CUDA_VISIBLE_DEVICES={visible!r} hides some of {len(node.gpus)} GPUs, which get no workers",
            "unset CUDA_VISIBLE_DEVICES to use all of them",
        )


def _niceness(node: NodeFacts) -> Iterator[tuple[str, str]]:
    if node.object_store_bytes is not None and node.niceness > 0:  # rlrun did not start this Ray
        yield (
            f"Ray runs its workers at niceness {node.niceness}: any other busy process takes almost all of a core "
            "from them",
            f"export {NICENESS}=0 before `ray start`; scripts/start_head.sh and start_worker.sh do",
        )


def _proxies(cluster: ClusterState, node: NodeFacts) -> Iterator[Finding]:
    variables = {name.lower(): value for name, value in node.environment.items()}
    proxies = [name for name in PROXIES if variables.get(name)]
    excluded = [part.strip() for part in variables.get("no_proxy", "").split(",")]
    peers = [peer.address for peer in cluster.requests if peer.node != node.node]
    proxied = [] if "*" in excluded else [peer for peer in peers if not _is_excluded(peer, excluded)]
    if proxies and proxied:
        yield Finding(
            "environment",
            Status.warning,
            node.node,
            f"{', '.join(proxies)} is exported and no_proxy lacks {', '.join(proxied[:4])}: Ray's gRPC may connect to "
            "the proxy instead of the node",
            f"export no_proxy={','.join(filter(None, [*excluded, *proxied]))}",
        )


def _is_excluded(address: str, excluded: list[str]) -> bool:
    for part in excluded:
        try:
            if ipaddress.ip_address(address) in ipaddress.ip_network(part, strict=False):
                return True
        except ValueError:
            continue  # a domain
    return False


def _differences(cluster: ClusterState) -> Iterator[Finding]:
    """Report settings that differ between nodes: collectives need the same ones on all ranks."""
    learners = [n for n in cluster.facts.nodes if {"actor", "rollout"} & set(cluster.request(n.node).workers)]
    names = {name for node in learners for name in node.environment if name.startswith(("NCCL_", "TORCH_"))}
    for name in sorted(names - {"NCCL_SOCKET_IFNAME"}):
        values = {node.node: node.environment.get(name, "unset") for node in learners}
        if len(set(values.values())) > 1:
            listing = ", ".join(f"{value} on {node}" for node, value in values.items())
            yield Finding("environment", Status.warning, "", f"{name} differs: {listing}", f"unset {name}", listing)
    modes = {node.node: node.environment.get("RAY_AUTH_MODE", "unset") for node in cluster.facts.nodes}
    if set(modes.values()) - {"token"} and (len(modes) > 1 or "disabled" in modes.values()):
        listing = ", ".join(f"{value} on {node}" for node, value in modes.items())
        cause = f"RAY_AUTH_MODE is not `token` everywhere: {listing}: anyone who reaches Ray's ports can run code there"
        fix = "start Ray by scripts/start_head.sh and start_worker.sh, or export RAY_AUTH_MODE=token before `ray start`"
        yield Finding("environment", Status.warning, "", cause, fix, listing)
