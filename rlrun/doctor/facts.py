"""What was measured, without judgement: of a node, of a link between two, of a collective of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.placement.path_mtu import PathMtu


@dataclass(frozen=True)
class InterfaceFacts:
    """One network interface. Example: InterfaceFacts("enp3s0", ("10.77.0.1",), is_up=True)."""

    name: str
    addresses: tuple[str, ...]  # IPv4 and IPv6
    is_up: bool


@dataclass(frozen=True)
class FolderFacts:
    """A folder that the run writes to, or the file system that it would be made on.

    Example: FolderFacts("temp", "/tmp", 40_000_000_000, 1_200_000_000, None, 310_000_000.0)
    """

    purpose: str  # "temp", "spill", "shared memory", "run", "cache"
    path: str
    total_bytes: int
    free_bytes: int
    error: str | None  # why it cannot be written; None: it can
    write_bytes_per_s: float | None = None  # None: not measured
    seen: tuple[str, ...] = ()  # nodes whose mark in this folder is seen from here


@dataclass(frozen=True)
class InputFacts:
    """A file or folder that the run reads. Example: InputFacts("policy.path", "/models/oft", 12, 15 * 10**9, "9f…")."""

    key: str
    path: str
    num_files: int  # 0: it does not exist
    num_bytes: int
    digest: str  # of names, sizes, and the first and last bytes of every file


@dataclass(frozen=True)
class GpuProcess:
    """Who holds memory of a GPU. Example: GpuProcess(4711, "python", 14_000_000_000)."""

    pid: int
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class GpuFacts:
    """One GPU as nvidia-smi tells. Example: GpuFacts(0, "NVIDIA A100-SXM4-80GB", "550.54.15", 85_899_345_920, …)."""

    index: int
    model: str
    driver: str
    total_bytes: int
    free_bytes: int
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class SimulatorFacts:
    """What OmniGibson would find on a node.

    Example: SimulatorFacts("/opt/omnigibson/bin/python", None, "3.10.14", {"omnigibson": "3.7.2", …}, "", …)
    """

    python: str
    error: str | None  # why the interpreter says nothing; None: it does
    python_version: str
    packages: Mapping[str, str]  # of that interpreter
    isaac_path: str  # ISAAC_PATH; "" where it is not set
    vulkan_icds: tuple[str, ...]  # NVIDIA's, that are there
    missing_libraries: tuple[str, ...]  # shared libraries, without "lib"
    data_path: str  # "" where none is known
    has_scene: bool
    has_key: bool
    eula: str  # OMNI_KIT_ACCEPT_EULA


@dataclass(frozen=True)
class PortFacts:
    """A port that a worker is to open here. Example: PortFacts("cluster.store_port", 29500, "redis (pid 812)")."""

    key: str
    port: int
    holder: str | None  # who listens there; None: it is free


@dataclass(frozen=True)
class DrawingFacts:
    """Who draws cameras. Example: DrawingFacts("egl", "llvmpipe (LLVM 15.0.6, 256 bits)", 2.9, "", "")."""

    kind: str  # "egl", "osmesa", "raycast"; "" where nothing was drawn
    drawn_by: str
    milliseconds: float  # for a picture of env.image_size
    warning: str  # what would be faster, and why it does not work; "": nothing
    error: str  # why nothing was drawn; "": it was


@dataclass(frozen=True)
class NodeFacts:
    """One node, as a process on it saw it."""

    node: str
    address: str
    host_name: str
    host_addresses: tuple[str, ...]  # what the host name resolves to there; empty: nothing
    interfaces: tuple[InterfaceFacts, ...]
    folders: tuple[FolderFacts, ...]
    inputs: tuple[InputFacts, ...]
    memory_bytes: int
    free_memory_bytes: int
    gpus: tuple[GpuFacts, ...]
    versions: Mapping[str, str]  # package -> version; "python", "torch CUDA", "rlrun sources" among them
    environment: Mapping[str, str]  # the variables that checks look at
    object_store_bytes: int | None = None  # of the node's Ray; None: there is none yet
    simulator: SimulatorFacts | None = None  # None: the node runs no OmniGibson
    niceness: int = 0  # of the process that saw it, as of workers
    drawing: DrawingFacts | None = None  # None: not looked at, or no world of rlrun's own there
    ports: tuple[PortFacts, ...] = ()

    def interface_of(self, address: str) -> str | None:
        """Name of the interface that owns an address."""
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
    error: str | None  # "refused", "no answer", or the system's words; None: connected
    milliseconds: float = 0.0
    source_address: str = ""  # which address of the source the route starts from
    skew_s: float | None = None  # clock of the target minus clock of the source; None: not told


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
    """How large packets from one node to another may be. Example: PathFacts("a", "b", PathMtu("eth0", 1500, 1400))."""

    source: str
    target: str
    path: PathMtu


@dataclass(frozen=True)
class ClusterFacts:
    """Everything that was measured."""

    nodes: tuple[NodeFacts, ...]
    links: tuple[LinkFacts, ...] = ()
    pairs: tuple[PairFacts, ...] = ()
    paths: tuple[PathFacts, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)  # node that did not answer -> why

    def node(self, name: str) -> NodeFacts | None:
        """The facts of a node; None if it did not answer."""
        return next((node for node in self.nodes if node.node == name), None)
