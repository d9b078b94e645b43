"""Checks of a node that runs OmniGibson, before it loads: interpreter, packages, graphics, data, licence."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlrun.doctor.check import Check, ClusterState, Finding, Status
from rlrun.doctor.facts import NodeFacts
from rlrun.doctor.measure import SimulatorInspection
from rlrun.doctor.node_request import SimulatorRequest
from rlrun.doctor.optional_packages import ask
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from rlrun.placement.inventory import WITHOUT_RT_CORES
from rlrun.system.nvidia_smi import major_version

# --- measurement --------------------------------------------------------------------------------

ICD_FOLDERS = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
ICD_VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
LIBRARIES = ("vulkan", "X11", "Xext", "Xt", "SM", "ICE", "GLU")  # libraries that Kit loads
KEY = "omnigibson.key"
_QUESTION_S = 60.0
_QUESTION = """
import importlib.metadata as m, importlib.util as u, json, sys
names = ("omnigibson", "isaacsim", "isaacsim-core", "bddl", "torch", "numpy", "msgpack")
found = {}
for name in names:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
spec = u.find_spec("omnigibson")
folder = list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else ""
print(json.dumps({"python": sys.version.split()[0], "packages": found, "folder": folder}))
"""
FIRST_DRIVER = 535  # minimum for Isaac Sim 4.5; Hopper and Blackwell need 570
GENERATIONS = {"3.10": ("3.7",), "3.11": ("3.8", "3.9")}  # Python that Isaac Sim pins -> versions of OmniGibson
ENVIRONMENT = "placement.nodes.<group>.environment"
PAGE = "docs/omnigibson.md"


@dataclass(frozen=True)
class SimulatorFacts:
    """The OmniGibson installation of a node.

    Example: SimulatorFacts("/opt/omnigibson/bin/python", None, "3.10.14", {"omnigibson": "3.7.2", …}, "", …)
    """

    python: str
    error: str | None  # why the interpreter did not answer; None: it answered
    python_version: str
    packages: Mapping[str, str]  # of that interpreter
    isaac_path: str  # ISAAC_PATH; "" if it is not set
    vulkan_icds: tuple[str, ...]  # NVIDIA's Vulkan driver files
    missing_libraries: tuple[str, ...]  # shared libraries, without "lib"
    data_path: str  # "" if unknown
    has_scene: bool
    has_key: bool
    eula: str  # OMNI_KIT_ACCEPT_EULA
    is_started: bool = True  # False: there is no such interpreter


def measure_simulator(request: SimulatorRequest) -> SimulatorFacts:
    """Return the facts for `request`; takes as long as its interpreter takes to start."""
    environment = {**os.environ, **request.environment}
    answered = ask(request.python, _QUESTION, [], _QUESTION_S, request.environment)
    answer = answered.value or {}
    late = f"no answer within {_QUESTION_S:.0f} s"
    data = environment.get("OMNIGIBSON_DATA_PATH", "")
    if not data and answer.get("folder"):
        data = str(Path(answer["folder"]) / "data")  # OmniGibson's own default
    places = [Path(data)] if data else []
    scene = request.env.section(OmniGibsonConfig).scene
    return SimulatorFacts(
        python=request.python,
        error=late if answered.is_late else answered.error or None,
        python_version=str(answer.get("python", "")),
        packages=dict(answer.get("packages", {})),
        isaac_path=environment.get("ISAAC_PATH", ""),
        vulkan_icds=_icds(environment),
        missing_libraries=tuple(name for name in LIBRARIES if ctypes.util.find_library(name) is None),
        data_path=data,
        has_scene=any(path for place in places for path in place.glob(f"**/scenes/{scene}")),
        has_key=any(path for place in places for path in place.glob(f"**/{KEY}")),
        eula=environment.get("OMNI_KIT_ACCEPT_EULA", ""),
        is_started=answered.is_started,
    )


def _icds(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return NVIDIA's Vulkan driver files (ICDs)."""
    named = [Path(path) for name in ICD_VARIABLES for path in environment.get(name, "").split(":") if path]
    usual = [path for folder in ICD_FOLDERS for path in sorted(Path(folder).glob("*nvidia*.json"))]
    return tuple(str(path) for path in (named or usual) if path.is_file())


# --- checks --------------------------------------------------------------------------------------


def interpreter(cluster: ClusterState) -> Iterator[Finding]:
    """Check that the interpreter starts, has a version that Isaac Sim supports, and has rlrun's dependencies."""
    for node, simulator in cluster.simulators(SimulatorFacts):
        if simulator.error is not None:
            cause = f"{simulator.python} does not start: {simulator.error}"
            yield _failed("simulator interpreter", node, cause, "placement.nodes.<group>.python=<OmniGibson's Python>")
            continue
        minor = ".".join(simulator.python_version.split(".")[:2])
        if minor not in GENERATIONS:
            cause = f"{simulator.python} is Python {simulator.python_version}; Isaac Sim needs 3.10 (4.5) or 3.11 (5.1)"
            yield _failed("simulator interpreter", node, cause, f"placement.nodes.<group>.python=… ; see {PAGE}", minor)
        for package in ("numpy", "msgpack"):
            if package not in simulator.packages:
                cause = f"{simulator.python} has no {package}, which rlrun needs to communicate with it"
                yield _failed("simulator interpreter", node, cause, f"{simulator.python} -m pip install {package}")


def packages(cluster: ClusterState) -> Iterator[Finding]:
    """Check that OmniGibson, Isaac Sim and BDDL are installed, in versions that fit together."""
    for node, simulator in cluster.simulators(SimulatorFacts):
        if simulator.error is not None:
            continue  # reported by the interpreter's check
        versions = simulator.packages
        version = versions.get("omnigibson")
        minor = ".".join(simulator.python_version.split(".")[:2])
        problem = None
        if version is None:
            problem = "OmniGibson is not installed"
        elif tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < (3, 7):
            problem = f"OmniGibson {version} has no R1Pro"
        elif not {"isaacsim", "isaacsim-core"} & set(versions) and not simulator.isaac_path:
            problem = "Isaac Sim is not installed, and ISAAC_PATH names none"
        elif "bddl" not in versions:
            problem = "bddl is not installed"
        if problem:
            yield _failed("simulator packages", node, f"{simulator.python}: {problem}", f"install as in {PAGE}")
        elif minor in GENERATIONS and not str(version).startswith(GENERATIONS[minor]):
            fitting = " or ".join(GENERATIONS[minor])
            cause = f"OmniGibson {version} under Python {minor}: only {fitting} was tested with {minor}"
            yield Finding("simulator packages", Status.warning, node.node, cause, f"see {PAGE}", str(version))


def graphics(cluster: ClusterState) -> Iterator[Finding]:
    """Check RT cores, driver, Vulkan, and the libraries that Kit loads."""
    for node, simulator in cluster.simulators(SimulatorFacts):
        used = {index for slot in cluster.slots(node.node) if slot.role == "env" for index in slot.accelerators}
        for gpu in node.gpus:
            if gpu.index not in used:
                continue
            if WITHOUT_RT_CORES.search(gpu.model):
                cause = f"accelerator {gpu.index} ({gpu.model}) has no RT cores: images would show severe artefacts"
                yield _failed(
                    "simulator graphics", node, cause, "placement.roles.env: take RTX accelerators", gpu.model
                )
            if (major_version(gpu.driver) or FIRST_DRIVER) < FIRST_DRIVER:
                cause = f"Isaac Sim needs driver {FIRST_DRIVER} or later; {gpu.driver} is installed"
                yield _failed("simulator graphics", node, cause, f"install driver {FIRST_DRIVER} or later", gpu.driver)
        if not simulator.vulkan_icds:
            cause = "the Vulkan loader finds no NVIDIA driver (no nvidia_icd.json)"
            fix = (
                "install the driver's graphics part; containers: -e NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"
            )
            yield _failed("simulator graphics", node, cause, fix)
        if simulator.missing_libraries:
            cause = f"Kit loads libraries that are missing: {', '.join(simulator.missing_libraries)}"
            fix = "apt-get install libvulkan1 libx11-6 libxext6 libxt6 libsm6 libice6 libglu1-mesa"
            yield _failed("simulator graphics", node, cause, fix)


def data(cluster: ClusterState) -> Iterator[Finding]:
    """Check the dataset, its key, and the scene of the run."""
    scene = cluster.config.env.section(OmniGibsonConfig).scene
    for node, simulator in cluster.simulators(SimulatorFacts):
        where = simulator.data_path or "nowhere"
        fix = f"download it ({PAGE}), then {ENVIRONMENT}.OMNIGIBSON_DATA_PATH=<the folder>"
        if not simulator.has_scene:
            yield _failed("simulator data", node, f"the scene {scene} is not under {where}", fix, where)
        elif not simulator.has_key:
            cause = f"omnigibson.key is not under {where}: assets cannot be decrypted"
            yield _failed("simulator data", node, cause, fix, where)


def licence(cluster: ClusterState) -> Iterator[Finding]:
    """Check that a variable accepts NVIDIA's licence agreement: OmniGibson sets it by itself, without asking you."""
    for node, simulator in cluster.simulators(SimulatorFacts):
        if simulator.eula.lower() not in ("yes", "y", "1"):
            cause = "OMNI_KIT_ACCEPT_EULA is not YES: nobody has accepted Isaac Sim's licence for this node"
            yield _failed("simulator licence", node, cause, f"read it, then {ENVIRONMENT}.OMNI_KIT_ACCEPT_EULA=YES")


def _failed(check: str, node: NodeFacts, cause: str, fix: str, measured: str = "") -> Finding:
    return Finding(check, Status.failed, node.node, cause, fix, measured)


def measured(cluster: ClusterState) -> str:
    """Example: "2 nodes, OmniGibson 3.7.2"."""
    simulators = [simulator for _, simulator in cluster.simulators(SimulatorFacts)]
    versions = dict.fromkeys(simulator_facts.packages.get("omnigibson", "?") for simulator_facts in simulators)
    return f"{len(simulators)} nodes, OmniGibson {', '.join(versions)}" if simulators else "no node was measured"


INSPECTION = SimulatorInspection(
    measure_simulator,
    (
        Check(
            "simulator interpreter",
            "nodes with env workers under env.simulator=omnigibson",
            "it does not start, is neither 3.10 nor 3.11, or lacks numpy or msgpack",
            interpreter,
            measured,
        ),
        Check(
            "simulator packages",
            "the same nodes",
            "one is missing, or OmniGibson is older than 3.7; warns about a version made for another Python",
            packages,
            measured,
        ),
        Check(
            "simulator graphics",
            "the same nodes, and the accelerators of env workers",
            "one is missing, or the driver is older than 535",
            graphics,
            measured,
        ),
        Check(
            "simulator data",
            "the same nodes",
            "one is missing",
            data,
            measured,
        ),
        Check(
            "simulator licence",
            "the same nodes",
            "OMNI_KIT_ACCEPT_EULA is not YES",
            licence,
            measured,
        ),
    ),
)
