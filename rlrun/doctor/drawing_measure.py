"""Lets the renderer of the embedded world draw on this node, in a process that is ended when it hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlrun.doctor.assignment import DrawingWish
from rlrun.doctor.facts import DrawingFacts

LIMIT_S = 12.0  # on an idle machine it takes two
_PACKAGE = Path(__file__).resolve().parents[1]
# As env workers in another interpreter find rlrun, which need not be installed there.
_TRIAL = """
import importlib.util, sys
bootstrap, package = sys.argv[1:3]
spec = importlib.util.spec_from_file_location("bootstrap", bootstrap)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.add_package("rlrun", package)
from rlrun.envs.embedded.drawing_trial import main
main(sys.argv[3])
"""
_TRAINERS_OWN = ("PYTHONPATH", "PYTHONHOME")  # of no use in another interpreter
_NO_PICTURE: dict[str, Any] = {"kind": "", "drawn_by": "", "milliseconds": 0.0}


def measure_drawing(wish: DrawingWish, limit_s: float = LIMIT_S) -> DrawingFacts:
    """Who draws for env workers, and how long a picture takes."""
    question = json.dumps({"renderer": wish.renderer, "image_size": wish.image_size})
    command = [wish.python, "-c", _TRIAL, str(_PACKAGE / "pipe" / "bootstrap.py"), str(_PACKAGE), question]
    hidden = () if wish.python == sys.executable else _TRAINERS_OWN
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        return _answer(command, own | dict(wish.environment), limit_s)
    except OSError as error:
        return DrawingFacts(**_NO_PICTURE, warning="", error=f"{wish.python} does not start: {error.strerror}")


def _answer(command: list[str], environment: dict[str, str], limit_s: float) -> DrawingFacts:
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        output, complaint = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()  # and not waited for: a process that hangs in a driver does not end
        warning = f"no picture within {limit_s:.0f} s: the graphics driver hangs, or the node is very busy"
        return DrawingFacts(**_NO_PICTURE, warning=warning, error="")
    if child.returncode < 0:
        return DrawingFacts(
            **_NO_PICTURE, warning="", error=f"drawing ended by {signal.Signals(-child.returncode).name}"
        )
    with contextlib.suppress(ValueError, IndexError, TypeError):
        return DrawingFacts(**json.loads(output.splitlines()[-1]))
    last = complaint.strip().splitlines()
    return DrawingFacts(
        **_NO_PICTURE, warning="", error=last[-1] if last else f"drawing ended with status {child.returncode}"
    )
