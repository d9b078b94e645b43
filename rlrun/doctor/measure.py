"""Measures the node it runs on: interfaces, folders, inputs, memory, GPUs, versions, environment."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from rlrun.config.registry import SIMULATORS, packages
from rlrun.config.schema import RunConfig
from rlrun.config.sections import load_object
from rlrun.config.simulator_spec import SimulatorSpec
from rlrun.doctor.check import Check
from rlrun.doctor.facts import (
    FolderFacts,
    GpuFacts,
    GpuProcess,
    InputFacts,
    InterfaceFacts,
    NodeFacts,
    PortFacts,
)
from rlrun.doctor.node_request import Folder, Input, NodeRequest, SimulatorRequest
from rlrun.doctor.optional_packages import open_packages
from rlrun.system import nvidia_smi
from rlrun.system.errors import RunError
from rlrun.system.machine_load import host_memory, local_load
from rlrun.system.network import port_holder
from rlrun.system.nvidia_smi import UnansweredError
from rlrun.system.storage_error import existing_parent, probe_write

LIMIT_S = 12.0  # for `measure`, which may ask a driver that hangs
LONGEST_S = 30.0  # for a `measure` that imports third-party code
MARKER = ".rlrun-marker-"  # name prefix, followed by the node's name, of files in folders that should be shared
PACKAGES = ("rlrun", "torch", "ray", "transformers", "numpy", "sglang")
VARIABLES = re.compile(
    r"(?i)(SGL(ANG)?_.*IMBALANCE.*|SGL(ANG)?_.*INBALANCE.*|GLOO_.*|NCCL_.*|TORCH_.*|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER"
    r"|RAY_AUTH_MODE"
    r"|RAY_ADDRESS|TMPDIR|RAY_TMPDIR|(http|https|all|grpc|no)_proxy|RLRUN_.*|RAY_local_fs_capacity_threshold|SLURM_JOB_ID|SLURM_MEM_PER_NODE)"
)
SHARED = ("run", "cache")  # purposes of folders that nodes share
_SPEED_BYTES = 8 * 2**20
_SPEED_S = 2.0  # stop then: the disk is slow, and its exact speed does not matter
_EDGE_BYTES = 64 * 1024
_MAX_FILES = 5000
_QUERY_S = 5.0
_GPU_FIELDS = ("index", "uuid", "name", "driver_version", "memory.total", "memory.free")
_PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")


@dataclass(frozen=True)
class SimulatorInspection:
    """Named by `ResourceSpec.node_checks`. Example: SimulatorInspection(measure_renderer, (Check("renderer", …),))."""

    measure: Callable[[SimulatorRequest], Any]  # runs on the node; its facts are `NodeFacts.simulator`
    checks: tuple[Check, ...]
    # whether a run measures it when it starts; else only rlrun.doctor does, and runs on several nodes
    is_measured_at_start: Callable[[RunConfig], bool] = lambda config: False


def inspection_of(spec: SimulatorSpec) -> SimulatorInspection | None:
    """Return the inspection that a spec names; None: it names none. Raises RunError if it cannot be imported."""
    return None if spec.resources.node_checks is None else SIMULATORS.part(spec, "resources.node_checks")


def inspections(specs: Iterable[SimulatorSpec]) -> Iterator[SimulatorInspection]:
    """Yield those of simulators. A broken one affects only runs of its simulator."""
    for spec in specs:
        try:
            inspection = inspection_of(spec)
        except RunError:
            continue
        if inspection is not None:
            yield inspection


def measure_simulator(request: SimulatorRequest) -> Any:
    """Return the facts of this node for the simulator of its env workers."""
    return load_object(request.inspection).measure(request)


def measure(node_request: NodeRequest, object_store_bytes: int | None = None) -> NodeFacts:
    """Return the facts of this node. Takes some tens of milliseconds, or seconds if the request is thorough."""
    memory = host_memory()
    gpus, gpu_fault = _gpus()
    return NodeFacts(
        node=node_request.node,
        address=node_request.address,
        host_name=socket.gethostname(),
        host_addresses=_resolved(socket.gethostname()),
        interfaces=_interfaces(),
        folders=tuple(measure_folder(folder, node_request) for folder in node_request.folders),
        inputs=tuple(_input(wanted) for wanted in node_request.inputs),
        memory_bytes=memory.total_bytes,
        free_memory_bytes=memory.free_bytes,
        gpus=gpus,
        gpu_fault=gpu_fault,
        versions=_versions(),
        environment={name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)},
        object_store_bytes=object_store_bytes,
        simulator=_simulator(node_request),
        niceness=os.nice(0),
        load=local_load(),
        packages=open_packages(node_request.packages),
        ports=tuple(PortFacts(request.key, request.port, port_holder(request.port)) for request in node_request.ports),
    )


def _simulator(node_request: NodeRequest) -> Any:
    """Return the facts of the simulator; None: there are no env workers, or this measurement has to be quick."""
    request = node_request.simulator
    if request is None or not (node_request.is_thorough or request.is_measured_at_start):
        return None
    return measure_simulator(request)


def _resolved(name: str) -> tuple[str, ...]:
    try:
        answers = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))


def _interfaces() -> tuple[InterfaceFacts, ...]:
    states = psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    return tuple(
        InterfaceFacts(
            name,
            tuple(a.address.partition("%")[0] for a in addresses if a.family in families),
            name in states and states[name].isup,
        )
        for name, addresses in psutil.net_if_addrs().items()
    )


# --- folders and inputs -------------------------------------------------------------------------


def measure_folder(folder: Folder, node_request: NodeRequest) -> FolderFacts:
    """Measure size, free bytes and writability of a folder's file system, and if thorough its write speed.

    Does not create the folder: uses its nearest existing parent. Marker files stay until `remove_marker`.
    """
    existing = existing_parent(Path(folder.path))
    try:
        usage = shutil.disk_usage(existing)
    except OSError as fault:
        return FolderFacts(folder.purpose, folder.path, 0, 0, str(fault))
    problem = None
    speed = None
    try:
        if (refused := probe_write(existing)) is not None:
            raise refused
        if node_request.is_thorough and folder.purpose != "shared memory":
            speed = _write_speed(existing, min(_SPEED_BYTES, usage.free // 2))
        if node_request.writes_markers and folder.purpose in SHARED:
            (existing / (MARKER + node_request.node)).touch()
    except OSError as fault:
        problem = fault.strerror or str(fault)
    return FolderFacts(folder.purpose, folder.path, usage.total, usage.free, problem, speed)


def _write_speed(folder: Path, num_bytes: int) -> float:
    """Return the bytes per second written to the disk, with fsync."""
    piece = b"\0" * max(4096, num_bytes // 8)
    started = time.perf_counter()
    written = 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as stream:
        while written < num_bytes and time.perf_counter() - started < _SPEED_S:
            written += stream.write(piece)
            os.fsync(stream.fileno())
    return max(1, written) / max(1e-9, time.perf_counter() - started)


def markers_in(folder: Folder) -> tuple[str, ...]:
    """Return the nodes whose marker files are in a folder."""
    return tuple(
        sorted(path.name.removeprefix(MARKER) for path in existing_parent(Path(folder.path)).glob(f"{MARKER}*"))
    )


def remove_marker(folder: Folder, node: str) -> None:
    """Remove the marker file that `measure_folder` wrote."""
    with contextlib.suppress(OSError):
        (existing_parent(Path(folder.path)) / (MARKER + node)).unlink(missing_ok=True)


def _input(wanted: Input) -> InputFacts:
    path = Path(wanted.path)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    files = [file for file in files if file.is_file()][:_MAX_FILES]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path)} {file.stat().st_size}\n".encode())
        digest.update(_edges(file))
    num_bytes = sum(file.stat().st_size for file in files)
    short = digest.hexdigest()[:12]
    return InputFacts(wanted.key, wanted.path, len(files), num_bytes, short)


def _edges(path: Path) -> bytes:
    """Return the first and last bytes of a file: different weights differ there, and whole models take too long."""
    with path.open("rb") as stream:
        head = stream.read(_EDGE_BYTES)
        stream.seek(max(0, path.stat().st_size - _EDGE_BYTES))
        return head + stream.read(_EDGE_BYTES)


# --- memory, GPUs, versions ---------------------------------------------------------------------


def _gpus() -> tuple[tuple[GpuFacts, ...], str]:
    """Return the GPUs that nvidia-smi lists, and its words if it fails, does not answer, or prints something else."""
    held: dict[str, list[GpuProcess]] = {}
    try:
        lines = nvidia_smi.query(_GPU_FIELDS, "gpu", _QUERY_S)
        for uuid, pid, name, used in nvidia_smi.query(_PROCESS_FIELDS, "compute-apps", _QUERY_S) if lines else ():
            number = int(pid) if pid.isdigit() else None
            held.setdefault(uuid, []).append(GpuProcess(number, Path(name).name, nvidia_smi.parse_mebibytes(used)))
    except UnansweredError as error:
        return (), str(error)
    gpus = (
        GpuFacts(
            int(index) if index.isdigit() else place,
            name,
            driver,
            nvidia_smi.parse_mebibytes(total) or None,
            nvidia_smi.parse_mebibytes(free),
            tuple(held.get(uuid, ())),
        )
        for place, (index, uuid, name, driver, total, free) in enumerate(lines)
    )
    return tuple(gpus), ""


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in (*PACKAGES, *packages()):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    cuda = _torch_cuda()
    if cuda is not None:
        versions["torch CUDA"] = cuda
    versions["rlrun sources"] = _sources()
    return versions


def _torch_cuda() -> str | None:
    """Return the CUDA version that torch was built with. Reads torch/version.py, since importing takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text()
    matched = re.search(r"^cuda.*=\s*'([\d.]+)'", text, re.MULTILINE)
    return matched.group(1) if matched else None


def _sources() -> str:
    """Return a digest of rlrun's code: two checkouts may have the same version number."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
