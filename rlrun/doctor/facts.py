"""Facts about a node, about a link between two nodes, and about a collective of two processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.data.fit import CompatibilityReport
from rlrun.doctor.optional_packages import PackageFacts
from rlrun.placement.inventory import Interface
from rlrun.placement.network import PathMtu


@dataclass(frozen=True)
class InterfaceFacts(Interface):
    """A network interface with its IPv6 addresses. Example: InterfaceFacts("enp3s0", ("10.77.0.1",), is_up=True)."""

    is_up: bool = True


@dataclass(frozen=True)
class FolderFacts:
    """A folder that the run writes to, or the file system on which it would be created.

    Example: FolderFacts("temp", "/tmp", 40_000_000_000, 1_200_000_000, None, 310_000_000.0)
    """

    purpose: str  # "temp", "spill", "shared memory", "run", "cache"
    path: str
    total_bytes: int
    free_bytes: int
    error: str | None  # why it cannot be written; None: it is writable
    write_bytes_per_s: float | None = None  # None: not measured
    seen: tuple[str, ...] = ()  # nodes whose marker file in this folder is visible here


@dataclass(frozen=True)
class InputFacts:
    """A file or folder that the run reads. Example: InputFacts("policy.path", "/models/oft", 12, 15 * 10**9, "9f…")."""

    key: str
    path: str
    num_files: int  # 0: it does not exist
    num_bytes: int
    digest: str  # hash of names, sizes, and the first and last bytes of every file


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU. Example: GpuProcess(4711, "python", 14_000_000_000)."""

    pid: int | None  # None: nvidia-smi does not say
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuFacts:
    """One GPU, from nvidia-smi. Example: GpuFacts(0, "NVIDIA A100-SXM4-80GB", "550.54.15", 85_899_345_920, …)."""

    index: int
    model: str
    driver: str
    total_bytes: int | None  # None: nvidia-smi does not say, as for memory that CPU and GPU share
    free_bytes: int | None
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class PortFacts:
    """A port that a worker will open. Example: PortFacts("cluster.store_port", 29500, "redis (pid 812)")."""

    key: str
    port: int
    holder: str | None  # process that listens there; None: the port is free


@dataclass(frozen=True)
class NodeFacts:
    """Facts of one node, measured by a process on it."""

    node: str
    address: str
    host_name: str
    host_addresses: tuple[str, ...]  # addresses of the host name there; empty: it does not resolve
    interfaces: tuple[InterfaceFacts, ...]
    folders: tuple[FolderFacts, ...]
    inputs: tuple[InputFacts, ...]
    memory_bytes: int
    free_memory_bytes: int
    gpus: tuple[GpuFacts, ...]
    versions: Mapping[str, str]  # package -> version; "python", "torch CUDA", "rlrun sources" among them
    environment: Mapping[str, str]  # the variables that checks use
    object_store_bytes: int | None = None  # of the node's Ray; None: Ray does not run there yet
    simulator: Any = None  # measured by the SimulatorInspection of its env workers; None: nothing was
    niceness: int = 0  # of the measuring process; workers have the same
    ports: tuple[PortFacts, ...] = ()
    packages: tuple[PackageFacts, ...] = ()  # optional ones that its workers need
    load: float = 0.0  # runnable processes per core
    gpu_fault: str = ""  # why nvidia-smi could not list the GPUs, in its words; "": it could, or is not there

    def interface_of(self, address: str) -> str | None:
        """Return the name of the interface that owns an address, or None."""
        owners = (interface.name for interface in self.interfaces if address in interface.addresses)
        return next(owners, None)


@dataclass(frozen=True)
class LinkFacts:
    """One connection from `source` to a port of `target`.

    Example: LinkFacts("train", "sim", "object manager", "10.77.0.2", 34567, None, 0.4, "10.77.0.1", 0.002)
    """

    source: str
    target: str
    purpose: str
    address: str
    port: int
    error: str | None  # "refused", "no answer", or the system's message; None: connected
    milliseconds: float = 0.0
    source_address: str = ""  # source address of the route; "": there is no route
    skew_s: float | None = None  # clock of the target minus clock of the source; None: unknown


@dataclass(frozen=True)
class PairFacts:
    """An all-reduce of two processes, one on each node. Example: PairFacts("a", "b", "gloo", None, 3.1)."""

    source: str
    target: str
    backend: str  # "gloo" or "nccl"
    error: str | None
    milliseconds: float = 0.0


@dataclass(frozen=True)
class PathFacts:
    """The path MTU from one node to another. Example: PathFacts("a", "b", PathMtu("eth0", 1500, 1400))."""

    source: str
    target: str
    path: PathMtu


@dataclass(frozen=True)
class ClusterFacts:
    """All measurements of a cluster."""

    nodes: tuple[NodeFacts, ...]
    links: tuple[LinkFacts, ...] = ()
    pairs: tuple[PairFacts, ...] = ()
    paths: tuple[PathFacts, ...] = ()
    unresponsive: Mapping[str, str] = field(default_factory=dict)  # node that did not answer -> reason
    driver_packages: tuple[PackageFacts, ...] = ()  # optional ones that the driver needs
    fit: CompatibilityReport | None = None  # of data set, policy folder and world; None: not compared
    driver_load: float = 0.0  # runnable processes per core of the driver's host, after the trials

    @property
    def load(self) -> float:
        """Return the load of the busiest host."""
        return max([self.driver_load, *(node.load for node in self.nodes)])

    def node(self, name: str) -> NodeFacts | None:
        """Return the facts of a node, or None if it did not answer."""
        return next((node for node in self.nodes if node.node == name), None)
