"""SGLang's switch for the memory check of tensor-parallel groups; its name and meaning depend on the version.

SGLang compares the free memory of a group's GPUs when it starts, and stops if one has less than 90 % of another.
Which version reads which variable, found by importing the released packages:

| SGLang | variable | switches the check off |
|---|---|---|
| up to 0.4.5.post1 | none | cannot be |
| 0.4.5.post2 to 0.5.6.post2 | SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK | "true" |
| from 0.5.7 | SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK | "0" |

From 0.5.7 to 0.5.17 the old name, if set to any value, overrides the new one without inversion: "disable" switches the
check ON. Later versions ignore it or obey it partly. Therefore both old names must be removed from the process that
imports SGLang; setting them to an empty string is not enough.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from packaging.version import Version

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
