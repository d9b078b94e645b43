"""The doctor's check of MuJoCo Warp: its packages, its card and its compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.config.simulator_spec import simulator_spec
from rlrun.doctor.check import Check, ClusterState, Finding, Status
from rlrun.doctor.measure import LONGEST_S, SimulatorInspection
from rlrun.doctor.node_request import SimulatorRequest
from rlrun.doctor.simulator_checks import run_trial
from rlrun_libero_warp.spec import COMPILE_S
from rlrun_libero_warp.start import REQUIREMENTS


@dataclass(frozen=True)
class WarpFacts:
    """MuJoCo Warp in the simulator's interpreter.

    Example: WarpFacts("4.0.0", "1.19.0", "NVIDIA H100", 85_000_000_000, "/data/.cache/rlrun/warp", 61, "")
    """

    mujoco_warp: str = ""  # version
    warp: str = ""  # version
    device: str = ""  # name of the card; "": the CPU steps
    memory_bytes: int = 0  # of the card
    cache: str = ""  # folder of compiled kernels
    num_compiled: int = 0  # modules in it
    error: str = ""  # why it cannot be used; "" if it can


def measure_warp(request: SimulatorRequest) -> WarpFacts:
    """Return what this node has of MuJoCo Warp."""
    trial = run_trial(request, "rlrun_libero_warp.start:find_warp", {}, LONGEST_S)
    late = f"its import was not finished within {LONGEST_S:.0f} s" if trial.is_late else trial.error
    return WarpFacts(**trial.value) if trial.value else WarpFacts(error=late)


def warp(cluster: ClusterState) -> Iterator[Finding]:
    """Check that MuJoCo Warp can be imported, has a card, and whether its kernels are compiled."""
    name = "simulator physics"
    for node, facts in cluster.simulators(WarpFacts):
        if facts.error:
            fix = f"pip install {' '.join(REQUIREMENTS)} in the interpreter of the env workers, or env.simulator=libero"
            yield Finding(name, Status.failed, node.node, facts.error, fix)
        elif not facts.device:
            cause = "env workers have no GPU here, and Warp's CPU device is slower than MuJoCo itself"
            fix = "place env workers on nodes with GPUs (placement.roles), or env.simulator=libero"
            yield Finding(name, Status.warning, node.node, cause, fix, _told(cluster, facts))
        elif not facts.num_compiled:
            cause = f"no kernels are compiled in {facts.cache}: the first start takes some {COMPILE_S // 60} minutes"
            fix = "nothing, or set WARP_CACHE_PATH to a folder that has them"
            yield Finding(name, Status.warning, node.node, cause, fix, _told(cluster, facts))


def found(cluster: ClusterState) -> str:
    """Example: "sim-0: MuJoCo Warp 4.0.0 on NVIDIA H100, room for some 90000 rows, 61 compiled modules in /data"."""
    sentences = [f"{node.node}: {_told(cluster, facts)}" for node, facts in cluster.simulators(WarpFacts)]
    return "; ".join(sentences[:8]) or "not looked at"


def _told(cluster: ClusterState, facts: WarpFacts) -> str:
    compiled = f"{facts.num_compiled} compiled modules in {facts.cache}"
    if not facts.device:
        return f"MuJoCo Warp {facts.mujoco_warp} on the CPU, {compiled}"
    env = cluster.config.env
    memory = simulator_spec(env).resources.memory(env)
    rows = max(0, 1 + (facts.memory_bytes - memory.first_env_bytes) // memory.further_env_bytes)
    return f"MuJoCo Warp {facts.mujoco_warp} on {facts.device}, room for some {rows} rows, {compiled}"


_WARP = Check(
    "simulator physics",
    "nodes with env workers under env.simulator=libero_warp",
    "it cannot be imported; warns if its CPU device steps, and if the first start compiles",
    warp,
    found,
)
INSPECTION = SimulatorInspection(measure_warp, (_WARP,))
