"""What the adapter relies on, against a pinned table of both generations and the sources on PyPI."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.schema import EnvConfig
from rlrun.envs import r1pro
from rlrun.envs.omnigibson.configuration import CAMERA_KEY, CONTROLLERS, ROBOT, SIGNATURES, TIMEOUT, environment_config
from rlrun.envs.omnigibson.launch import wanted_macros
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from rlrun.envs.r1pro_keys import ProprioLayout

NAMES = json.loads((Path(__file__).parents[3] / "data" / "omnigibson_names.json").read_text())
PART = {"torso": "trunk", "left_arm": "arm_left", "right_arm": "arm_right"}
PART |= {"left_gripper": "gripper_left", "right_gripper": "gripper_right", "base": "base"}
CONFIG = EnvConfig(sections={"omnigibson": OmniGibsonConfig(proprio=ProprioLayout.full_256)})


@pytest.mark.parametrize("generation", SIGNATURES)
def test_signatures_are_as_pinned(generation: str) -> None:
    pinned = NAMES["signatures"][generation]
    for name, passed in SIGNATURES[generation].items():
        assert set(passed) <= set(pinned[name]), name


def test_cameras() -> None:
    links = {CAMERA_KEY.format(link=link) for link in r1pro.CAMERAS}
    assert links == set(NAMES["cameras"].values())
    own = OmniGibsonConfig()
    assert {"head": own.head_resolution, "wrist": own.wrist_resolution} == NAMES["resolution"]


def test_action_layout_and_limits() -> None:
    low, high = r1pro.action_limits()
    for name, (start, stop) in NAMES["action"].items():
        assert r1pro.ACTION_PARTS[PART[name]] == slice(start, stop)
        assert CONTROLLERS[PART[name]] == stop - start
    for name, (lower, upper) in NAMES["joint_range"].items():
        scale = r1pro.BASE_VELOCITY if name == "base" else 1.0  # commands of the base are shares of its top speed
        where = r1pro.ACTION_PARTS[PART[name]]
        assert np.allclose(low[where] * scale, lower) and np.allclose(high[where] * scale, upper)


def test_proprioception_and_joint_order() -> None:
    assert {name: slice(start, stop) for name, start, stop in NAMES["proprio"]} == r1pro.PROPRIO_256
    for name, (start, stop, step) in NAMES["joint_order"].items():
        expected = [r1pro.JOINT_NAMES[i] for i in range(start, stop, step)]
        assert list(r1pro.joints_of(PART[name])) == expected


def test_robot_configuration() -> None:
    config = environment_config(CONFIG, {"type": "R1Pro"}, None)
    (robot,) = config["robots"]
    assert robot["name"] == ROBOT and robot["type"] == "R1Pro" and "model" not in robot
    assert robot["reset_joint_pos"] == NAMES["reset_joint_pos"]
    assert robot["proprio_obs"] == [name for name, _, _ in NAMES["proprio"]]
    for part, expected in NAMES["controllers"].items():
        assert expected.items() <= robot["controller_config"][part].items()
    assert "num_envs" not in config["env"]
    assert environment_config(CONFIG, {"model": "r1pro"}, 4)["env"]["num_envs"] == 4


def test_macros() -> None:
    assert set(wanted_macros(OmniGibsonConfig())) == set(NAMES["macros"])


# --- the sources on PyPI: older than both, but most of 3.7's interface is in them ---------------------------


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of omnigibson."""
    folder = tmp_path_factory.mktemp("omnigibson")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", folder, "omnigibson==1.1.1"], capture_output=True, text=True, timeout=120, check=False
    )
    archives = list(folder.glob("omnigibson-*.tar.gz"))
    if not archives:
        pytest.skip(f"the source distribution of omnigibson cannot be downloaded: {done.stderr.strip()[-200:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("omnigibson-*/omnigibson"))


def functions(tree: ast.Module, class_name: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            yield from (inner for inner in node.body if isinstance(inner, ast.FunctionDef))


FILES = {
    "Environment": "envs/env_base.py",
    "VectorEnvironment": "envs/vec_env_base.py",
    "Simulator": "simulator.py",
    "Serializable": "utils/python_utils.py",
    "VisionSensor": "sensors/vision_sensor.py",
}


@pytest.mark.long
@pytest.mark.parametrize("name", SIGNATURES["3.7"])
def test_signatures_against_the_sources(sources: Path, name: str) -> None:
    class_name, method = name.split(".")
    tree = ast.parse((sources / FILES[class_name]).read_text())
    found = [function for function in functions(tree, class_name) if function.name == method]
    assert found, f"{class_name} has no {method}"
    parameters = {argument.arg for argument in found[0].args.args}
    assert set(SIGNATURES["3.7"][name]) <= parameters


@pytest.mark.long
def test_the_sources_behave_as_the_adapter_expects(sources: Path) -> None:
    """The traps that the adapter works around are really there."""
    timeout = (sources / "termination_conditions/timeout.py").read_text()
    assert "env.episode_steps >= self._max_steps" in timeout  # asked before the step is counted: one step too many
    env = (sources / "envs/env_base.py").read_text()
    assert f'tc == "{TIMEOUT}"' in env
    assert env.index("self.task.step(self, action)") < env.index("self._current_step += 1")
    macros = (sources / "macros.py").read_text()
    assert "raise AttributeError" in macros and 'os.getenv("OMNIGIBSON_GPU_ID"' in macros
    for macro in set(NAMES["macros"]) - {"USE_NUMPY_CONTROLLER_BACKEND", "ENABLE_TILED_RENDERING"}:
        assert f"gm.{macro} = " in macros, macro
    assert "signal.signal(signal.SIGINT" in (sources / "__init__.py").read_text()
    assert '"active_gpu"] = gpu_id' in (sources / "simulator.py").read_text()
