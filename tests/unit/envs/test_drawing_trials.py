"""What the doctor tries of renderers: LIBERO's in an interpreter of its own, Gymnasium's with its environment."""

from __future__ import annotations

import sys

from rlrun.config.loader import load
from rlrun.doctor.assignment import SimulatorRequest
from rlrun.envs.gymnasium.node_checks import measure_spaces
from rlrun.envs.libero.node_checks import DrawingFacts, measure_drawing


def request(*overrides: str, environment: dict[str, str] | None = None) -> SimulatorRequest:
    env = load([*overrides, "policy.kind=cnn"]).env
    return SimulatorRequest("", sys.executable, environment or {}, env)


def test_libero_s_renderer_is_named_with_its_speed_or_its_fault() -> None:
    facts = measure_drawing(request("env=libero"), limit_s=200)
    assert (facts.device and facts.milliseconds > 0) or facts.error, "no graphics here is a fault, told as such"
    broken = measure_drawing(request("env=libero", environment={"MUJOCO_GL": "disabled"}), limit_s=200)
    assert broken.error and not broken.device


def test_an_interpreter_that_is_not_there() -> None:
    libero = request("env=libero")
    facts = measure_drawing(SimulatorRequest("", "/nowhere/python", {}, libero.env))
    assert isinstance(facts, DrawingFacts) and "/nowhere/python" in facts.error


def test_pixels_of_gymnasium_have_a_speed() -> None:
    facts = measure_spaces(request("run=cartpole", "env.gymnasium.is_observed_as_pixels=true"), limit_s=200)
    assert facts.error == "" and facts.num_images == 1 and facts.images_per_second > 0
