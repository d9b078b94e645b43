"""Starts of episodes: cached instances of an activity, chosen by seed and loaded into one row in place."""

from __future__ import annotations

import importlib
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.data.instances import listed_instance
from rlrun.envs.omnigibson.arrays import to_numpy
from rlrun.envs.omnigibson.configuration import task_config
from rlrun.envs.omnigibson.generations import Simulation
from rlrun.envs.omnigibson.settings import Instances, OmniGibsonConfig
from rlrun.envs.vector_env import SimulatorFault
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

SETTLE_STEPS = 25  # physics steps with all actions held, since poses from a file overlap a little
TOLERANCE_M = 0.02


class InstanceLoader:
    """Loads the instance files of `env.activity`, and records which instance each row holds."""

    def __init__(self, simulation: Simulation, config: EnvConfig):
        self._simulation, self._config = simulation, config
        self._held: dict[int, int] = {}  # row -> instance
        self._files = {} if config.section(OmniGibsonConfig).instances is Instances.online else instance_files(config)
        self.ids = chosen_ids(config, self._files)

    def instance_of(self, seed: int) -> int | None:
        """Return the instance from which an episode with this reset seed starts; None: objects are placed anew."""
        if self._config.section(OmniGibsonConfig).instances is Instances.online:
            return None
        if self._config.section(OmniGibsonConfig).instances is Instances.sampled:
            return self.ids[int(np.random.default_rng(seed).integers(len(self.ids)))]
        return listed_instance(seed, self.ids)

    def prepare(self, row: int, seed: int) -> None:
        """Prepare `row` so that its next reset starts as `seed` determines."""
        instance = self.instance_of(seed)
        if instance is None:
            self._sample_online(row, seed)
        elif self._held.get(row) != instance:
            if self._files:  # without files, the scene as loaded is instance 0
                self._simulation.reset([row])  # else the robot would follow its last targets while objects settle
                self._load(row, self._files[instance])
            self._held[row] = instance

    def _load(self, row: int, file: Path) -> None:
        convert = importlib.import_module("omnigibson.utils.python_utils").recursively_convert_to_torch
        state = convert(json.loads(file.read_text(encoding="utf-8")))
        poses = state.pop("robot_poses", None)
        scene, scope = self._simulation.scene(row), self._simulation.object_scope(row)
        for name, entity_state in state.items():
            if name.startswith("agent."):
                continue
            if scope.get(name) is None:
                raise SimulatorFault(f"{file} places {name}, which the loaded scene does not have")
            scope[name].load_state(in_scene(entity_state, scene, scope[name]), serialized=False)
        if poses is not None:
            robot = self._simulation.robot(row)
            pose = _pose_for(poses, robot, file)
            robot.set_position_orientation(pose["position"], pose["orientation"], frame="scene")
            robot.keep_still()
        scene.write_task_metadata(key="robot_poses", data=poses)
        self._settle(scope)
        scene.update_initial_file()

    def _settle(self, scope: dict[str, Any]) -> None:
        for _ in range(SETTLE_STEPS):
            self._simulation.og.sim.step_physics()
            for entity in scope.values():
                if entity is not None and getattr(entity, "exists", True) and not getattr(entity, "is_system", False):
                    entity.keep_still()

    def _sample_online(self, row: int, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - OmniGibson's own sampler draws from it
        if not self._simulation.resample(row, task_config(self._config)):
            raise RunError(
                "This OmniGibson cannot place objects anew while it runs.",
                key="env.omnigibson.instances",
                value="online",
                cause="Its Environment has no update_task.",
                remedy="Take env.omnigibson.instances=sampled with a folder of cached instances.",
                row="omnigibson-online-sampling",
            )


def in_scene(state: Any, scene: Any, entity: Any) -> Any:
    """Return the state with `entity`'s root pose in this scene; files store poses relative to their scene.

    Builds differ in the frame that load_state expects, so it is tested on scenes away from the origin.
    """
    pose = state.get("root_link") if isinstance(state, dict) else None
    if not getattr(scene, "idx", 0) or not isinstance(pose, dict) or "pos" not in pose or "ori" not in pose:
        return state
    entity.load_state(state, serialized=False)
    there = to_numpy(entity.get_position_orientation(frame="scene")[0])
    if np.abs(there - to_numpy(pose["pos"])).max() < TOLERANCE_M:
        return state
    position, orientation = scene.convert_scene_relative_pose_to_world(pose["pos"], pose["ori"])
    return state | {"root_link": pose | {"pos": position, "ori": orientation}}


def _pose_for(poses: dict[str, Any], robot: Any, file: Path) -> Any:
    by_name = {name.lower(): value for name, value in poses.items()}
    model = str(getattr(robot, "model_name", None) or getattr(robot, "model", "r1pro")).lower()
    for name in ("robot", model):
        if name in by_name:
            return by_name[name][0]
    raise SimulatorFault(f"{file} has robot poses for {', '.join(poses)}, none for {model}")


def instance_files(config: EnvConfig) -> dict[int, Path]:
    """Return instance -> file, of the configured folder, else the dataset's. Empty: only the loaded scene exists."""
    own = config.section(OmniGibsonConfig)
    stem = f"{own.scene}_task_{config.activity}_{own.definition_id}_"
    if own.instance_dir is not None:
        found = list(Path(own.instance_dir).glob(f"{stem}*_template-tro_state.json"))
        if not found:
            raise _no_instances(f"No {stem}<n>_template-tro_state.json lies in {own.instance_dir}.", config)
    else:
        gm = importlib.import_module("omnigibson.macros").gm
        data = Path(str(dict.get(gm, "DATA_PATH") or dict.get(gm, "DATASET_PATH") or "."))
        inner = f"scenes/{own.scene}/json/{own.scene}_task_{config.activity}_instances/{stem}*_template-tro_state.json"
        found = [*data.glob(inner), *data.glob(f"*/{inner}")]
    named = {int(match.group(1)): file for file in found if (match := re.search(r"_(\d+)_template", file.name))}
    return dict(sorted(named.items()))


def chosen_ids(config: EnvConfig, files: dict[int, Path]) -> list[int]:
    """Return the instances from which episodes may start."""
    own = config.section(OmniGibsonConfig)
    if own.instances is Instances.online:
        return []
    if own.instances is Instances.sampled:
        if not files:
            raise _no_instances("There is nothing to sample from.", config)
        return list(files)
    missing = [one for one in own.instance_ids if one not in files and (files or one != 0)]
    if missing:
        raise _no_instances(f"Instance {missing[0]} is not among {_short(list(files))}.", config)
    return list(own.instance_ids)


def _short(ids: list[int]) -> str:
    return f"{ids[0]} to {ids[-1]} ({len(ids)} files)" if ids else "those of the data set, which has none"


def _no_instances(cause: str, config: EnvConfig) -> RunError:
    return RunError(
        f"The instances of {config.activity} are not there.",
        key="env.omnigibson.instance_dir",
        value=config.section(OmniGibsonConfig).instance_dir,
        cause=cause,
        remedy="Download the task instances (docs/omnigibson.md), or correct instance_dir and instance_ids.",
        exit_status=ExitStatus.bad_input,
        row="omnigibson-instances-missing",
    )
