"""The spec of a simulator: one part for each reader, of which only the world must be given."""

from __future__ import annotations

import dataclasses

import pytest

from rlrun.config.loader import load
from rlrun.config.registry import packages
from rlrun.config.simulator_spec import PlannedSpaces, SimulatorSpec, WorldSpec, simulator_spec
from rlrun.placement.node_environment import variables
from rlrun.system.errors import RunError

SMALL = SimulatorSpec("small", print, WorldSpec(lambda env: PlannedSpaces(0, 1, 1)))


def test_a_world_is_enough() -> None:
    env = load(["run=cartpole"]).env
    assert SMALL.resources.memory(env).of(2) == 305_000_000 and SMALL.resources.time(env) is None
    assert SMALL.process.environment((0,), 4) == [] and SMALL.process.failure_log(1) == []
    assert SMALL.evaluation.perturbations(env) == {} and SMALL.evaluation.env(env) is env
    assert not SMALL.world.has_expert(env)


def test_a_fact_stands_in_one_part() -> None:
    parts = [SMALL.world, SMALL.resources, SMALL.process, SMALL.evaluation, SMALL.wire]
    names = [field.name for part in parts for field in dataclasses.fields(part)]
    assert len(names) == len(set(names))


def test_facts_of_all_installed_simulators() -> None:
    assert {"mujoco", "gymnasium", "omnigibson"} <= set(packages())
    assert {"MUJOCO_EGL_DEVICE_ID", "OMNIGIBSON_GPU_ID"} <= {variable.name for variable in variables()}


def test_another_object_is_no_simulator() -> None:
    env = dataclasses.replace(load(["run=cartpole"]).env, simulator="rlrun.envs.gymnasium.spec:GymnasiumConfig")
    with pytest.raises(RunError):
        simulator_spec(env)
