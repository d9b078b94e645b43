"""The environment of a worker: variables of the plan, and variables that only its node can determine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.version import Version

from rlrun.config.schema import RolloutBackendKind, RunConfig
from rlrun.placement.inventory import Interface
from rlrun.placement.plan import Slot
from rlrun.system.errors import ExitStatus, RunError

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
        command = [python, "-c", _LOOK, SWITCH]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=True)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None  # starting the engine reports a broken interpreter with a remedy


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
