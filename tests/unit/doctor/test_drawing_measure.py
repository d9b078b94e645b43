"""Who draws on this machine, and what is said of a graphics driver that hangs, crashes or is not there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from rlrun.doctor.assignment import DrawingWish
from rlrun.doctor.drawing_measure import measure_drawing


def stand_in(folder: Path, body: str) -> DrawingWish:
    """An interpreter that does something else than drawing."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return DrawingWish(str(program), {}, "auto", 64)


def test_this_machine_draws() -> None:
    environment = {
        "MUJOCO_EGL_DEVICE_ID": "63",
        "OMP_NUM_THREADS": "1",
    }  # of a plan that counts more GPUs than EGL does
    facts = measure_drawing(DrawingWish(sys.executable, environment, "auto", 64), limit_s=60)
    assert facts.error == "" and facts.kind in ("egl", "osmesa", "raycast") and facts.drawn_by
    assert 0 < facts.milliseconds < 1000
    cast = measure_drawing(DrawingWish(sys.executable, environment, "raycast", 64), limit_s=60)
    assert (cast.kind, cast.drawn_by, cast.warning) == ("raycast", "none: ray casting in numpy", "")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("exec sleep 60", "no picture within 1 s"),
        ("kill -SEGV $$", "drawing ended by SIGSEGV"),
        ("echo 'No module named rlrun' >&2; exit 1", "No module named rlrun"),
        ("exit 3", "drawing ended with status 3"),
    ],
)
def test_what_hangs_or_crashes_is_told_in_time(tmp_path: Path, body: str, error: str) -> None:
    started = time.monotonic()
    facts = measure_drawing(stand_in(tmp_path, body), limit_s=1.0)
    assert error in facts.error + facts.warning and facts.drawn_by == ""
    assert time.monotonic() - started < 10


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    facts = measure_drawing(DrawingWish(str(tmp_path / "python"), {}, "auto", 64))
    assert "does not start: No such file" in facts.error
