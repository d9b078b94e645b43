"""The renderer of this machine, and graphics drivers that hang, crash or are missing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from rlrun.config.schema import EnvConfig, Renderer
from rlrun.doctor.assignment import SimulatorRequest
from rlrun.envs.embedded.node_measure import measure_renderer


def request(python: str, environment: dict[str, str], renderer: str) -> SimulatorRequest:
    return SimulatorRequest("", python, environment, EnvConfig(renderer=Renderer[renderer]))


def stand_in(folder: Path, body: str) -> SimulatorRequest:
    """Return a request whose interpreter is a shell script."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return request(str(program), {}, "auto")


def test_this_machine_renders() -> None:
    environment = {
        "MUJOCO_EGL_DEVICE_ID": "63",
        "OMP_NUM_THREADS": "1",
    }  # as from a plan that counts more GPUs than EGL
    facts = measure_renderer(request(sys.executable, environment, "auto"), limit_s=60)
    assert facts.error == "" and facts.kind in ("egl", "osmesa", "raycast") and facts.device
    assert 0 < facts.milliseconds < 1000
    cast = measure_renderer(request(sys.executable, environment, "raycast"), limit_s=60)
    assert (cast.kind, cast.device, cast.warning) == ("raycast", "none: ray casting in numpy", "")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("exec sleep 60", "no image within 1 s"),
        ("kill -SEGV $$", "the renderer gave no image: killed by SIGSEGV"),
        ("echo 'No module named rlrun' >&2; exit 1", "No module named rlrun"),
        ("exit 3", "ended with status 3"),
    ],
)
def test_hangs_and_crashes_are_reported_in_time(tmp_path: Path, body: str, error: str) -> None:
    started = time.monotonic()
    facts = measure_renderer(stand_in(tmp_path, body), limit_s=1.0)
    assert error in facts.error + facts.warning and facts.device == ""
    assert time.monotonic() - started < 10


def test_missing_interpreter(tmp_path: Path) -> None:
    facts = measure_renderer(request(str(tmp_path / "python"), {}, "auto"))
    assert "does not start: No such file" in facts.error
