"""Checks in the process that imports SGLang, before an engine starts: version, arguments, memory switch."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any

from rlrun.system.errors import ExitStatus, RunError

logger = logging.getLogger(__name__)

SWITCH = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"
_READ = f"""
import runpy, sys
values = runpy.run_path(sys.argv[1])["envs"]
print(values.{SWITCH}.get() if hasattr(values, "{SWITCH}") else "absent")
"""
_CHILD_S = 60.0


def version() -> str:
    """Return the version of the installed SGLang. Raises ImportError naming the interpreter."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError as error:
        raise ImportError(f"there is no sglang in {sys.executable}") from error


def argument_names() -> set[str]:
    """Return the fields of this version's ServerArgs."""
    from sglang.srt.server_args import ServerArgs

    return set(getattr(ServerArgs, "__struct_fields__", ()) or ServerArgs.__dataclass_fields__)


def known_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that this version has; warn about the others."""
    left_out = sorted(set(arguments) - argument_names())
    if left_out:
        logger.warning("SGLang %s has no argument %s", version(), ", ".join(left_out))
    return {name: value for name, value in arguments.items() if name not in left_out}


def check_switch() -> None:
    """Check in a child process, where SGLang's memory check runs, that SGLang reads the memory switch correctly.

    Raises RunError if it reads another value than was set.
    """
    wanted = os.environ.get(SWITCH)
    if wanted is None:
        return
    package = util.find_spec("sglang")
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    source = next((path for folder in folders if (path := Path(folder) / "srt" / "environ.py").is_file()), None)
    if source is None:
        return
    command = [sys.executable, "-c", _READ, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_S, check=False)
    read = done.stdout.strip().splitlines()[-1:]
    if read == [str(wanted == "1")]:
        logger.info("SGLang's check of memory balance is %s, in its children too", "on" if wanted == "1" else "off")
        return
    raise RunError(
        "SGLang reads another value of its memory switch than was set.",
        key="placement.roles.rollout",
        value=f"{SWITCH}={wanted}",
        cause=f"A child process reads {read[0] if read else done.stderr.strip()[-200:]!r}.",
        remedy="Remove every SGL_… and SGLANG_… variable from placement.nodes.<group>.environment, or take another "
        "version of SGLang.",
        exit_status=ExitStatus.placement,
    )
