"""Every name of OmniGibson that the adapter uses, in the sources of each checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from rlrun.config.schema import EnvConfig
from rlrun.envs import r1pro
from rlrun.envs.omnigibson import configuration, launch
from rlrun.envs.omnigibson.configuration import SIGNATURES
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from tests.omnigibson_source.syntax import Checkout, texts_of

NEVER_EVERYWHERE = {"ENABLE_TILED_RENDERING"}  # macros that only some generations have; the adapter looks first
SETTABLE = {"VisionSensor": ("image_height", "image_width", "horizontal_aperture")}
ATTRIBUTES = {
    "Simulator": ("render", "step_physics", "stopped", "render_on_step", "update_handles", "add_callback_on_add_obj"),
    "Scene": ("dump_state", "load_state", "write_task_metadata", "get_task_metadata", "update_initial_file", "robots"),
    "BehaviorTask": ("ground_goal_state_options",),
    "BaseTransitionRule": ("ENABLED",),
}


@cache
def read(folder: Path) -> Checkout:
    return Checkout(folder)


def robot_class(source: Checkout) -> str:
    return "R1Pro" if "R1Pro" in source.classes else "Robot"


def generation(source: Checkout) -> str:
    return "3.7" if "VectorEnvironment" in source.classes else "3.9"


def test_signatures(checkout: Path) -> None:
    source = read(checkout)
    for name, passed in SIGNATURES[generation(source)].items():
        found = source.parameters(*name.split("."))
        assert found is not None and set(passed) <= found, name


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(checkout: Path, name: str) -> None:
    missing = [one for one in ATTRIBUTES[name] if not read(checkout).has_attribute(name, one)]
    assert not missing


def test_cameras_can_be_resized(checkout: Path) -> None:
    source = read(checkout)
    assert all(source.is_settable(name, one) for name, names in SETTABLE.items() for one in names)


def test_robot_configuration(checkout: Path) -> None:
    """Unknown keys are dropped in silence, so that nothing else would tell."""
    source = read(checkout)
    accepted = source.all_parameters(robot_class(source))
    config = configuration.robot_config(EnvConfig(sections={"omnigibson": OmniGibsonConfig(cameras=["zed_link"])}))
    assert set(config) <= accepted
    for name in ("set_position_orientation", "get_position_orientation"):
        assert "frame" in (source.parameters(robot_class(source), name) or ())
    for part in config["controller_config"].values():
        assert set(part) - {"name"} <= source.all_parameters(part["name"]), part["name"]


def test_scene_and_task_configuration(checkout: Path) -> None:
    source = read(checkout)
    scene = configuration.scene_config(EnvConfig(sections={"omnigibson": OmniGibsonConfig(scene_file="x.json")}))
    takes = source.parameters("InteractiveTraversableScene", "__init__") or set()
    assert set(scene) - {"type"} <= takes
    takes = source.parameters("BehaviorTask", "__init__") or set()
    assert set(configuration.task_config(EnvConfig())) - {"type"} <= takes


def test_macros(checkout: Path) -> None:
    source = read(checkout)
    wanted = set(launch.wanted_macros(OmniGibsonConfig())) - NEVER_EVERYWHERE
    assert wanted <= set(source.macros("gm"))
    module = source.macros("m")["GRASP_WINDOW"]
    assert f"omnigibson.{module.removesuffix('.py').replace('/', '.')}" in launch.GRASPING_MODULES


def test_transition_rules_of_the_challenge(checkout: Path) -> None:
    assert {"ToggleableMachineRule", "MixingToolRule", "CookingSystemRule"} <= set(read(checkout).classes)


def test_proprioception(checkout: Path) -> None:
    """Every field of the layouts is computed by the robot; keys of arms are templates with the arm's name."""
    source = read(checkout)
    functions = source.all_functions(robot_class(source), "_get_proprioception_dict")
    keys = {
        key.replace("{}", side) for function in functions for key in texts_of(function) for side in ("left", "right")
    }
    assert not {*r1pro.PROPRIO_256, *r1pro.PROPRIO_61} - keys
