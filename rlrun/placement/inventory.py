"""The machines: nodes with their cores, memory, accelerators, network interfaces and disks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

GIGABYTE = 10**9
# Data-centre models without RT cores; all other NVIDIA models since Turing have them.
WITHOUT_RT_CORES = re.compile(
    r"\b(A100|A800|A30X?|H100|H800|H20|H200|GH200|B100|B200|GB200|B300|GB300|V100|P100|P40|K80)\b"
)
THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class Accelerator:
    """One GPU. Example: Accelerator("NVIDIA A100-SXM4-80GB", 80_000_000_000, has_rt_cores=False)."""

    model: str
    memory_bytes: int | None  # None: unknown
    has_rt_cores: bool
    is_fake: bool = False  # declared for a test: planned and reserved, but no worker can compute on it
    is_hidden: bool = False  # CUDA_VISIBLE_DEVICES of the user excludes it: it keeps its index, and gets no worker


@dataclass(frozen=True)
class Interface:
    """A network interface that is up. Example: Interface("enp3s0", ("10.77.0.1",))."""

    name: str
    addresses: tuple[str, ...]  # IPv4


@dataclass(frozen=True)
class NodeInfo:
    """One machine. Fields that the inventory does not give are None or ().

    Example: NodeInfo("sim-0", "10.77.0.2", 64, 256_000_000_000, (rtx_4090,) * 8)
    """

    name: str
    address: str  # "" if unknown, as in an inventory file for planning
    num_cpus: int
    memory_bytes: int
    accelerators: tuple[Accelerator, ...]
    interfaces: tuple[Interface, ...] = ()
    temp_dir: str | None = None  # of its Ray
    object_store_bytes: int | None = None  # of its Ray
    spill_dir: str | None = None  # folder for objects that do not fit into the object store of its Ray
    spill_free_bytes: int | None = None  # bytes that Ray may still write there; it stops at 95 % of a disk
    doubts: tuple[str, ...] = ()  # sentences on what could not be measured

    @property
    def usable(self) -> tuple[int, ...]:
        """Indices of the accelerators that are not hidden. Indices are those of nvidia-smi."""
        return tuple(index for index, accelerator in enumerate(self.accelerators) if not accelerator.is_hidden)

    def __str__(self) -> str:
        return f"{self.name} ({describe(self.accelerators)}, {self.num_cpus} cores)"


@dataclass(frozen=True)
class Inventory:
    """All machines, in the order that numbers the accelerators."""

    nodes: tuple[NodeInfo, ...]
    source: str = "a list"  # origin, for messages

    @cached_property
    def num_accelerators(self) -> int:
        return sum(len(node.usable) for node in self.nodes)

    def node(self, name: str) -> NodeInfo:
        """Return the node of a name. Raises KeyError."""
        return self._by_name[name]

    @property
    def doubts(self) -> tuple[str, ...]:
        """What could not be measured, with the node if there are several."""
        where = len(self.nodes) > 1
        return tuple(f"{node.name}: {doubt}" if where else doubt for node in self.nodes for doubt in node.doubts)

    @cached_property
    def _by_name(self) -> dict[str, NodeInfo]:
        return {node.name: node for node in self.nodes}

    def __str__(self) -> str:
        return "; ".join(str(node) for node in self.nodes[:8]) + ("; …" if len(self.nodes) > 8 else "")


def describe(accelerators: tuple[Accelerator, ...]) -> str:
    """Example: "8 x RTX 4090"; "no accelerator". Hidden ones do not count."""
    accelerators = tuple(accelerator for accelerator in accelerators if not accelerator.is_hidden)
    models = dict.fromkeys(accelerator.model for accelerator in accelerators)
    counts = {model: sum(a.model == model for a in accelerators) for model in models}
    return ", ".join(f"{count} x {model}" for model, count in counts.items()) or "no accelerator"
