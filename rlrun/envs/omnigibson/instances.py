"""Starts of episodes: cached instances of an activity and poses of the robot, chosen by seed, loaded into one row."""

from __future__ import annotations

import importlib
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.data.task_instances import listed_instance
from rlrun.edges.starts import Split, split_of
from rlrun.envs.omnigibson.configuration import task_config, to_numpy, to_tensor
from rlrun.envs.omnigibson.generations import Simulation
from rlrun.envs.omnigibson.spec import Instances, OmniGibsonConfig
from rlrun.envs.vector_env import SimulatorFault
from rlrun.system.errors import ExitStatus, RunError

SETTLE_STEPS = 25  # physics steps with all actions held, since poses from a file overlap a little
TOLERANCE_M = 0.02
TOLERANCE_TURN = 1e-4  # of 1 - |cos(half the angle)|: about 1.6 degrees
POSE_STREAM = 1  # apart from the draw of the instance by the same seed


@dataclass(frozen=True)
class Pose:
    """A pose of the robot's base in its own scene."""

    position: np.ndarray  # float32 [3], m
    orientation: np.ndarray  # float32 [4], quaternion x, y, z, w


class InstanceLoader:
    """Loads the instance files of `env.omnigibson.activity`, and records which instance and pose each row holds."""

    def __init__(self, simulation: Simulation, config: EnvConfig):
        self._simulation = simulation
        self._config = config
        self._own = config.section(OmniGibsonConfig)
        self._held: dict[int, int] = {}  # row -> instance
        self._poses: dict[int, list[Pose]] = {}  # row -> poses of its instance
        self._pose: dict[int, Pose | None] = {}  # row -> pose of its running or next episode
        self._files = {} if self._own.instances is Instances.online else instance_files(config)
        self.ids = chosen_ids(config, self._files)

    def instance_of(self, seed: int) -> int | None:
        """Return the instance from which an episode with this reset seed starts; None: objects are placed anew."""
        if self._own.instances is Instances.online:
            return None
        ids = self._ids_of(split_of(seed))
        if self._own.instances is Instances.sampled and ids is self.ids:
            return ids[int(np.random.default_rng(seed).integers(len(ids)))]
        return listed_instance(seed, ids)

    def _ids_of(self, split: Split) -> list[int]:
        kept = {Split.validation: self._own.validation_instance_ids, Split.test: self._own.test_instance_ids}
        return kept.get(split) or self.ids

    def prepare(self, row: int, seed: int) -> None:
        """Prepare `row` so that its next reset starts as `seed` determines."""
        instance = self.instance_of(seed)
        if instance is None:
            self._sample_online(row, seed)
            return
        is_new = self._held.get(row) != instance
        if not is_new and self._chosen_pose(row, seed) is self._pose.get(row):
            return
        self._simulation.reset([row])  # else the robot would follow its last targets, and objects stay where they are
        if is_new and self._files:
            self._load_objects(row, self._files[instance])
        elif is_new:  # without files, the scene as loaded is instance 0
            self._poses[row] = self._poses_of(row, self._simulation.robot_poses(row), "the scene")
        self._held[row] = instance
        self._pose[row] = self._chosen_pose(row, seed)
        self.check_pose(row)
        if is_new and self._files:
            self._settle(row)
        self._simulation.scene(row).update_initial_file()  # the reset then begins, and rewards count, from here

    def check_pose(self, row: int) -> None:
        """Put the robot where the row's episode starts, in its own scene, unless it is there."""
        pose = self._pose.get(row)
        robot = self._simulation.robot(row)
        if pose is None:
            return
        there, facing = (to_numpy(part) for part in robot.get_position_orientation(frame="scene"))
        is_turned = abs(float(np.dot(facing, pose.orientation))) < 1.0 - TOLERANCE_TURN
        if is_turned or np.abs(there - pose.position).max() >= TOLERANCE_M:
            robot.set_position_orientation(to_tensor(pose.position), to_tensor(pose.orientation), frame="scene")
            robot.keep_still()

    def _chosen_pose(self, row: int, seed: int) -> Pose | None:
        """Return the pose that `seed` determines: equal seeds, equal starts."""
        poses = self._poses.get(row, [])
        if not poses or not self._own.randomize_presampled_pose:
            return poses[0] if poses else None
        return poses[int(np.random.default_rng((seed, POSE_STREAM)).integers(len(poses)))]

    def _poses_of(self, row: int, by_robot: Any, source: object) -> list[Pose]:
        if not self._own.use_presampled_robot_pose:
            return []
        return _poses_for(by_robot or {}, self._simulation.robot(row), source)

    def _load_objects(self, row: int, file: Path) -> None:
        convert = importlib.import_module("omnigibson.utils.python_utils").recursively_convert_to_torch
        content = json.loads(file.read_text(encoding="utf-8"))
        scene = self._simulation.scene(row)
        scope = self._simulation.object_scope(row)
        poses = content.pop("robot_poses", None)
        if poses is not None:
            scene.write_task_metadata(key="robot_poses", data=convert(poses))
        self._poses[row] = self._poses_of(row, poses or self._simulation.robot_poses(row), file)
        for name, state in convert(content).items():
            if name.startswith("agent."):
                continue
            if scope.get(name) is None:
                raise SimulatorFault(f"{file} places {name}, which the loaded scene does not have")
            scope[name].load_state(in_scene(state, scene, scope[name]), serialized=False)

    def _settle(self, row: int) -> None:
        self._simulation.update_handles()
        for _ in range(SETTLE_STEPS):
            self._simulation.og.sim.step_physics()
            for entity in self._simulation.object_scope(row).values():
                if is_body(entity):
                    entity.keep_still()

    def _sample_online(self, row: int, seed: int) -> None:
        self._pose.pop(row, None)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - OmniGibson's own sampler draws from it
        if not self._simulation.resample(row, task_config(self._config)):
            raise RunError(
                "This OmniGibson cannot place objects anew while it runs.",
                key="env.omnigibson.instances",
                value="online",
                cause="Its Environment has no update_task.",
                remedy="Take env.omnigibson.instances=sampled with a folder of cached instances.",
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


def is_body(entity: Any) -> bool:
    """Return whether an entity of the goal's scope is an object that exists; substances cannot be held still."""
    if entity is None or not getattr(entity, "exists", True) or getattr(entity, "is_system", False):
        return False
    return hasattr(entity, "keep_still")  # 3.8 and 3.9 put substances into the scope as they are


def _poses_for(by_robot: dict[str, Any], robot: Any, source: object) -> list[Pose]:
    """Return the poses of this robot. Raises RunError if there are none."""
    named = {name.lower(): poses for name, poses in by_robot.items()}
    model = str(getattr(robot, "model_name", None) or getattr(robot, "model", "r1pro")).lower()
    entries = named.get("robot") or named.get(model)
    if not entries:
        raise RunError(
            f"There is no pose from which {model} may start.",
            key="env.omnigibson.use_presampled_robot_pose",
            value=True,
            cause=f"{source} has poses for {', '.join(by_robot) or 'no robot'}.",
            remedy="Take instances that have them, or env.omnigibson.use_presampled_robot_pose=false.",
            exit_status=ExitStatus.bad_input,
        )
    return [_pose(pose) for pose in entries]


def _pose(entry: Any) -> Pose:
    return Pose(to_numpy(entry["position"]).astype(np.float32), to_numpy(entry["orientation"]).astype(np.float32))


def instance_files(config: EnvConfig) -> dict[int, Path]:
    """Return instance -> file, of the configured folder, else the dataset's. Empty: only the loaded scene exists."""
    settings = config.section(OmniGibsonConfig)
    stem = f"{settings.scene}_task_{settings.activity}_{settings.definition_id}_"
    if settings.instance_dir is not None:
        paths = list(Path(settings.instance_dir).glob(f"{stem}*_template-tro_state.json"))
        if not paths:
            raise _no_instances(f"No {stem}<n>_template-tro_state.json lies in {settings.instance_dir}.", config)
    else:
        paths = _challenge_files(stem, config)
    named: dict[int, Path] = {}
    for file in sorted(paths):
        number = re.search(r"_(\d+)_template", file.name)
        if number and named.setdefault(int(number.group(1)), file) != file:
            raise _no_instances(f"{named[int(number.group(1))]} and {file} have one number.", config)
    return dict(sorted(named.items()))


def _challenge_files(stem: str, config: EnvConfig) -> list[Path]:
    """Return the instance files in the data set, of one year. Raises RunError if there are two and none is chosen."""
    settings = config.section(OmniGibsonConfig)
    gm = importlib.import_module("omnigibson.macros").gm
    data = Path(str(dict.get(gm, "DATA_PATH") or dict.get(gm, "DATASET_PATH") or "."))
    inner = f"{settings.scene}/json/{settings.scene}_task_{settings.activity}_instances/{stem}*_template-tro_state.json"
    by_folder: dict[Path, list[Path]] = {}
    for folder in (data, *sorted(path for path in data.glob("*") if path.is_dir())):
        if settings.instance_year is not None and not folder.name.startswith(f"{settings.instance_year}-"):
            continue
        # the challenge of 2026 keeps the instances of its tests apart
        paths = [path for part in ("scenes", "scene_test/*") for path in folder.glob(f"{part}/{inner}")]
        if paths:
            by_folder[folder] = paths
    if len(by_folder) > 1:
        names = ", ".join(folder.name for folder in by_folder)
        raise _no_instances(f"Several folders have some: {names}. Set env.omnigibson.instance_year.", config)
    return next(iter(by_folder.values()), [])


def chosen_ids(config: EnvConfig, files: dict[int, Path]) -> list[int]:
    """Return the instances from which training may start."""
    settings = config.section(OmniGibsonConfig)
    if settings.instances is Instances.online:
        return []
    is_sampled = settings.instances is Instances.sampled
    if is_sampled and not files:
        raise _no_instances("There is nothing to sample from.", config)
    kept = [*settings.validation_instance_ids, *settings.test_instance_ids]
    named = kept if is_sampled else [*settings.instance_ids, *kept]
    missing = [instance for instance in named if instance not in files and (files or instance != 0)]
    if missing:
        raise _no_instances(f"Instance {missing[0]} is not among {_short(list(files))}.", config)
    training = [instance for instance in (files if is_sampled else settings.instance_ids) if instance not in kept]
    if not training:
        raise _no_instances("All of them are kept for validation or test.", config)
    return training


def _short(ids: list[int]) -> str:
    return f"{ids[0]} to {ids[-1]} ({len(ids)} files)" if ids else "those of the data set, which has none"


def _no_instances(cause: str, config: EnvConfig) -> RunError:
    settings = config.section(OmniGibsonConfig)
    return RunError(
        f"The instances of {settings.activity} are not there.",
        key="env.omnigibson.instance_dir",
        value=settings.instance_dir,
        cause=cause,
        remedy="Download the task instances (docs/omnigibson.md), or correct instance_dir, _year and _ids.",
        exit_status=ExitStatus.bad_input,
    )
