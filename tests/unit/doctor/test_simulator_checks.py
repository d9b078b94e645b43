"""Renderers and environments of this machine, and graphics drivers that hang, crash or are missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.config.schema import EnvConfig, Renderer
from rlrun.doctor.node_request import SimulatorRequest
from rlrun.doctor.simulator_checks import measure_mujoco_renderer, measure_spaces, measure_world_renderer


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
    facts = measure_world_renderer(request(sys.executable, environment, "auto"), limit_s=60)
    assert facts.error == "" and facts.kind in ("egl", "osmesa", "raycast") and facts.device
    assert 0 < facts.milliseconds < 1000
    cast = measure_world_renderer(request(sys.executable, environment, "raycast"), limit_s=60)
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
def test_hangs_and_crashes_are_reported(tmp_path: Path, body: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.doctor.optional_packages.local_load_factor", lambda: 1.0)
    facts = measure_world_renderer(stand_in(tmp_path, body), limit_s=1.0)
    assert error in facts.error + facts.warning and facts.device == ""


def test_missing_interpreter(tmp_path: Path) -> None:
    facts = measure_world_renderer(request(str(tmp_path / "python"), {}, "auto"))
    assert "does not start: No such file" in facts.error and not facts.is_started
    spaces = measure_spaces(request(str(tmp_path / "python"), {}, "auto"))
    assert "does not start: No such file" in spaces.error and not spaces.is_started


def of(*overrides: str, environment: dict[str, str] | None = None, python: str = sys.executable) -> SimulatorRequest:
    return SimulatorRequest("", python, environment or {}, load([*overrides, "policy.kind=cnn"]).env)


def test_mujoco_s_renderer_is_named_with_its_speed_or_its_fault() -> None:
    facts = measure_mujoco_renderer(of("env=libero"), limit_s=200)
    assert (facts.device and facts.milliseconds > 0) or facts.error, "no graphics here is a fault, told as such"
    broken = measure_mujoco_renderer(of("env=libero", environment={"MUJOCO_GL": "disabled"}), limit_s=200)
    assert broken.error and not broken.device


def test_mujoco_s_renderer_in_an_interpreter_that_is_not_there_or_hangs(tmp_path: Path) -> None:
    assert "/nowhere/python" in measure_mujoco_renderer(of("env=libero", python="/nowhere/python")).error
    late = measure_mujoco_renderer(stand_in(tmp_path, "exec sleep 60"), limit_s=1.0)
    assert late.error == "" and "no image within 1 s" in late.warning


def test_pixels_of_gymnasium_have_a_speed() -> None:
    facts = measure_spaces(of("run=cartpole", "env.gymnasium.is_observed_as_pixels=true"), limit_s=200)
    assert facts.error == "" and facts.num_images == 1 and facts.images_per_second > 0
