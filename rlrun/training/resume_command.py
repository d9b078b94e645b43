"""The command that resumes a run, for messages: it can be pasted into the shell that started the run."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from rlrun.config import provenance


def resume_command(run_dir: Path, program: str = "rlrun.train") -> str:
    """Return the command. Example: "python -m rlrun.train resume=runs/cartpole/2026-01-31_12-00-00"."""
    trust = "" if provenance.can_mark() else " trust=true"
    return f"{shlex.quote(_interpreter())} -m {program} resume={shlex.quote(_near(run_dir))}{trust}"


def _interpreter() -> str:
    """Return "python" where that is the interpreter of this process, else its path."""
    found = shutil.which("python")
    return "python" if found and Path(found).absolute() == Path(sys.executable) else _near(Path(sys.executable))


def _near(path: Path) -> str:
    """Return a path relative to the working directory if it is below it, else an absolute one."""
    whole = path.absolute()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)
