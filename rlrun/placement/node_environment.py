"""Environment variables of workers: the table of all, those of the plan, and those that only a node can determine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.version import Version

from rlrun.config.registry import SIMULATORS
from rlrun.config.schema import CompileBackend, RolloutBackendKind, RunConfig
from rlrun.config.simulator_process import Decided, Setting, Variable
from rlrun.placement.inventory import Interface
from rlrun.placement.plan import Slot
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.import_path import question
from rlrun.system.network import SENTINEL

ALL = ("actor", "rollout", "env")
LEARNERS = ("actor", "rollout")
FREEING_MS = 100  # Ray's default of 1 s leaves one step in the store when the next one arrives
NICENESS = "RAY_worker_niceness"  # added to that of Ray's own processes
MANY_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray's services listen on loopback
# Of PYTORCH_ALLOC_CONF, from torch 2.13 on. Both sizes are the same, because torch 2.13 looks for a kept block by the
# power of two only: what it keeps must be rounded up, or a request gets a block that is too small.
PINNING = "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:64"
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
MOST_COMPILE_THREADS = 32  # as in torch itself
GROWING = "expandable_segments:True"
ACTOR_ALLOCATOR = f"{GROWING},{PINNING}"
_FIRST_PINNING = (2, 13)  # the first torch that takes PINNING; older ones refuse it

VARIABLES = (
    Variable("CUDA_VISIBLE_DEVICES", ALL, Decided.plan, "a worker sees its own accelerators only; empty: none"),
    Variable("CUDA_DEVICE_ORDER", ALL, Decided.plan, "PCI_BUS_ID: indices then mean the same as in nvidia-smi"),
    Variable(
        "PYTORCH_ALLOC_CONF",
        LEARNERS,
        Decided.plan,
        "expandable segments: batches of unequal length fragment; only pinned memory up to 64 MB is rounded and kept",
    ),
    Variable(
        COMPILE_THREADS,
        LEARNERS,
        Decided.plan,
        "workers that compile: Inductor else starts a process a core, up to 32, for each of them",
    ),
    Variable("OMP_NUM_THREADS", ALL, Decided.plan, "thread pools else take every core for each worker"),
    Variable("TOKENIZERS_PARALLELISM", LEARNERS, Decided.plan, "its threads do not survive a fork, and it then warns"),
    Variable("TORCH_FR_BUFFER_SIZE", LEARNERS, Decided.plan, "flight recorder: the last collectives of every rank"),
    Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", LEARNERS, Decided.plan, "a collective past its deadline leaves its record"),
    Variable(
        "TORCH_FR_DUMP_TEMP_FILE", LEARNERS, Decided.node, "into the run folder: `flight_recorder/<worker>_<rank>`"
    ),
    Variable("GLOO_SOCKET_IFNAME", LEARNERS, Decided.node, "a host name may resolve to loopback; NICs differ by node"),
    Variable("NCCL_SOCKET_IFNAME", LEARNERS, Decided.node, "=NAME of the same one; without =, eth1 means eth10 too"),
    Variable(
        "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK",
        ("rollout",),
        Decided.node,
        "SGLang from 0.5.7: off where other workers sit on some GPUs of its group only",
    ),
    Variable(
        "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK",
        ("rollout",),
        Decided.node,
        "SGLang before 0.5.7 reads it; later ones switch the check on because of it, so it is removed",
    ),
    Variable(
        "SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK",
        ("rollout",),
        Decided.node,
        "an alias in few versions: removed",
    ),
    Variable(
        "SGLANG_EXTERNAL_MODEL_PACKAGE",
        ("rollout",),
        Decided.node,
        "SGLang then imports none of its own 200 models, which takes half of its start",
    ),
    Variable("SGLANG_PLATFORM", ("rollout",), Decided.node, "without an accelerator: rlrun's CPU platform"),
    Variable(
        "IMAGEIO_FFMPEG_NO_PREVENT_SIGINT",
        ("env",),
        Decided.node,
        "where a video is written: imageio else forks, which fails with more memory mapped than there is",
    ),
    Variable(SENTINEL, (), Decided.cluster, "the address of the node's sentinel, for its workers"),
    Variable(
        "RAY_AUTH_MODE",
        (),
        Decided.cluster,
        "token: else any peer that reaches Ray's ports runs code on the node",
    ),
    Variable("RAY_AUTH_TOKEN", (), Decided.cluster, "made for the run, or found; in the environment only"),
    Variable(MANY_NODES, (), Decided.cluster, "0 for a Ray of one node, whose services then listen on loopback"),
    Variable("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", (), Decided.cluster, "Ray else unsets the devices of the plan"),
    Variable(
        "RAY_DISABLE_FAILURE_SIGNAL_HANDLER",
        (),
        Decided.cluster,
        "Ray's handler would end the driver at a SIGTERM, before it has saved",
    ),
    Variable(
        "RAY_IGNORE_UNHANDLED_ERRORS",
        (),
        Decided.cluster,
        "Ray else repeats failures that rlrun reported",
    ),
    Variable(
        "RAY_free_objects_period_milliseconds", (), Decided.cluster, "a step's trajectories go before others come"
    ),
    Variable("RAY_event_stats", (), Decided.cluster, "Ray's idle processes then take less of a core"),
    Variable("RAY_task_events_report_interval_ms", (), Decided.cluster, "Ray's own list of tasks is not used"),
    Variable(NICENESS, (), Decided.cluster, "at Ray's own 15, a busy neighbour leaves workers 5 % of a core"),
    Variable("RAY_health_check_initial_delay_ms", (), Decided.cluster, "the head asks nodes from the start"),
    Variable("RAY_health_check_period_ms", (), Decided.cluster, "a cut cable else goes unseen for 65 s"),
    Variable("RAY_health_check_timeout_ms", (), Decided.cluster, "how long a node has for its answer"),
    Variable("RAY_health_check_failure_threshold", (), Decided.cluster, "from node.lost_after_s"),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}
SWITCH = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"
OLD_SWITCH = "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK"
DEAD_SWITCH = "SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK"  # some versions read it as an alias
_FIRST_WITH_OLD = Version("0.4.5.post2")
_FIRST_WITH_NEW = Version("0.5.7")
_LOOK_S = 60.0
_LOOK = """
import json, sys
from importlib import metadata, util
from pathlib import Path
try:
    version = metadata.version("sglang")
except metadata.PackageNotFoundError:
    print("null"), sys.exit()
package = util.find_spec("sglang")
sources = [Path(folder) / "srt" / "environ.py" for folder in package.submodule_search_locations or ()]
reads_new = any(source.is_file() and sys.argv[1] in source.read_text(encoding="utf-8") for source in sources)
print(json.dumps({"version": version, "reads_new": reads_new}))
"""


def allocator(is_actor: bool, torch_version: str) -> str | None:
    """Return the allocator's settings of a worker with an accelerator, as far as its torch takes them; None: none."""
    has_pinning = Version(torch_version).release >= _FIRST_PINNING
    if is_actor:
        return ACTOR_ALLOCATOR if has_pinning else GROWING
    return PINNING if has_pinning else None


def variables() -> tuple[Variable, ...]:
    """Return the table with the rows of installed simulators."""
    of_simulators = (one for spec in SIMULATORS.installed() for one in spec.process.variables)
    return tuple(dict.fromkeys([*VARIABLES, *of_simulators]))


def setting(name: str, value: object) -> Setting:
    """Return a row of the table with a value. Raises KeyError for a variable that the table lacks."""
    return _BY_NAME[name].to(value)


def may_compile(config: RunConfig, role: str, has_accelerator: bool) -> bool:
    """Return whether workers of a role compile kernels, where a node has the compilers."""
    backend = config.policy.compile_backend
    by_default = backend is None and role == "actor" and has_accelerator
    return by_default or (backend is CompileBackend.inductor and role in LEARNERS)


def compile_threads(num_cores: int) -> Setting:
    """Return the setting for a worker that compiles and has so many cores of its node."""
    return setting(COMPILE_THREADS, min(num_cores, MOST_COMPILE_THREADS))


def markdown_table() -> str:
    """Return the table for the documentation."""
    rows = [f"| `{v.name}` | {', '.join(v.roles) or 'all'} | {v.decided.value} | {v.reason} |" for v in variables()]
    return "\n".join(["| variable | workers | decided by | why |", "|---|---|---|---|", *rows])


# --- SGLang's check of memory ---------------------------------------------------------------------


def switch_environment(version: Version, is_check_kept: bool) -> dict[str, str | None]:
    """Return variables to set or remove (None) before SGLang is imported.

    Raises RunError if the check must be off and this version cannot switch it off.
    Example: switch_environment(Version("0.5.12"), False) sets SWITCH to "0" and removes the other two.
    """
    environment: dict[str, str | None] = {SWITCH: None, OLD_SWITCH: None, DEAD_SWITCH: None}
    if version >= _FIRST_WITH_NEW:
        environment[SWITCH] = "1" if is_check_kept else "0"
    elif version >= _FIRST_WITH_OLD:
        environment[OLD_SWITCH] = None if is_check_kept else "true"
    elif not is_check_kept:
        raise RunError(
            f"SGLang {version} always checks that the GPUs of a tensor-parallel group have equally much free memory.",
            "placement.roles.rollout",
            cause="The plan puts other workers on some of the group's GPUs only, so their free memory differs.",
            remedy="Install SGLang 0.5.7 or later, or share all GPUs of the group equally, or none.",
            exit_status=ExitStatus.placement,
        )
    return environment


def installed_version(python: str | None = None) -> Version | None:
    """Return the SGLang version that decides on the switch, or None if SGLang is not installed.

    python: the interpreter that will import it; None: this one.
    A build from git may have an older version number than its code; then its source shows which switch it reads.
    """
    found = _look(python or sys.executable)
    if found is None:
        return None
    version = Version(found["version"])
    is_built = version.is_devrelease or version.local is not None
    return max(version, _FIRST_WITH_NEW) if is_built and found["reads_new"] else version


def _look(python: str) -> dict[str, Any] | None:
    """Return the version of an interpreter's SGLang and whether it reads the new switch, without importing it."""
    try:
        command = question(python, _LOOK, SWITCH)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=True)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None  # starting the engine reports a broken interpreter with a remedy


# --- the environment of one worker ---------------------------------------------------------------


def node_environment(slot: Slot, interface: Interface, config: RunConfig, run_dir: Path) -> dict[str, str | None]:
    """Return variables to set or remove (None) before the worker imports its libraries. Runs on the worker's node."""
    environment: dict[str, str | None] = {setting.name: setting.value for setting in slot.environment}
    environment |= {"GLOO_SOCKET_IFNAME": interface.name, "NCCL_SOCKET_IFNAME": f"={interface.name}"}
    if slot.role != "env" and slot.accelerators:
        dump = run_dir.absolute() / "flight_recorder" / f"{slot.name.replace('/', '-')}_"  # torch appends the rank
        environment["TORCH_FR_DUMP_TEMP_FILE"] = str(dump)
    version = installed_version(config.rollout.sglang.python) if slot.role == "rollout" and _is_sglang(config) else None
    if version is not None:
        environment |= switch_environment(version, slot.memory_check.value == "on")
    return environment


def _is_sglang(config: RunConfig) -> bool:
    return config.rollout.backend is RolloutBackendKind.sglang
