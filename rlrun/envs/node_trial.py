"""Runs a module of rlrun in a process of a simulator's interpreter, which is killed if it hangs.

The module's `main` takes a question as JSON and prints its answer, a JSON object, as its last line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.doctor.assignment import SimulatorRequest
from rlrun.envs.opengl import drop_unusable

_PACKAGE = Path(__file__).resolve().parents[1]
# The interpreter may lack rlrun; it imports the package as env workers under another interpreter do.
_PROGRAM = """
import importlib, importlib.util, sys
bootstrap, package, module, question = sys.argv[1:5]
spec = importlib.util.spec_from_file_location("bootstrap", bootstrap)
found = importlib.util.module_from_spec(spec)
spec.loader.exec_module(found)
found.add_package("rlrun", package)
importlib.import_module(module).main(question)
"""
_TRAINER_ONLY = ("PYTHONPATH", "PYTHONHOME")  # variables that would break another interpreter


@dataclass(frozen=True)
class Trial:
    """The outcome. Example: Trial({"kind": "egl"}), Trial(error="killed by SIGSEGV"), Trial(is_late=True)."""

    answer: dict[str, Any] = field(default_factory=dict)
    error: str = ""  # why there is no answer; "" if there is one, or none in time
    is_late: bool = False


def run_trial(request: SimulatorRequest, module: str, question: dict[str, Any], limit_s: float) -> Trial:
    """Ask `module.main` under the request's interpreter and environment; waits `limit_s` at most."""
    program = [request.python, "-c", _PROGRAM, str(_PACKAGE / "pipe" / "bootstrap.py"), str(_PACKAGE)]
    hidden = () if request.python == sys.executable else _TRAINER_ONLY
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    pipe, environment = subprocess.PIPE, own | dict(request.environment)
    drop_unusable(environment)
    try:
        child = subprocess.Popen(
            [*program, module, json.dumps(question)],
            env=environment,
            stdin=subprocess.DEVNULL,  # a question is an error
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        return Trial(error=f"{request.python} does not start: {error.strerror}")
    try:
        output, errors = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()  # no wait: a process that hangs in a driver does not end
        return Trial(is_late=True)
    if child.returncode < 0:
        return Trial(error=f"killed by {signal.Signals(-child.returncode).name}")
    with contextlib.suppress(ValueError, IndexError):
        return Trial(dict(json.loads(output.splitlines()[-1])))
    last = errors.strip().splitlines()
    return Trial(error=last[-1] if last else f"ended with status {child.returncode}")
