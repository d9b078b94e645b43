"""Scenes that `rlrun.envs.libero.export` wrote: models, starts and goals of LIBERO's tasks."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary
from xml.etree import ElementTree

import mujoco
import numpy as np

from rlrun.envs.libero import export
from rlrun.envs.libero.controller import ArmViews, RobotDescription, arm_views
from rlrun.envs.libero.goals import Goal
from rlrun.envs.libero.painter import ScenePainter
from rlrun.envs.libero.spec import MAX_OPEN
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json, require_regular

log = logging.getLogger(__name__)

_SUITE_FILE = "suite.json"
_TASK_FILE = "task.json"

# LIBERO-PRO's suites that ask in other words, or for something else: their files keep the names of the tasks that they
# change, which LIBERO takes for sentences, so that the sentence is that of the BDDL file
_REWORDED = ("_lan", "_task")
_OF_SCENE = ("changed", "multiccd", "robot")  # what a scene has beside its file
# its sparse factorization, taken for 60 and more degrees of freedom, gives wrong accelerations; mended in 4.0.1
_WRONG_SPARSE = "4.0.0"


@dataclass(eq=False)
class Scene:
    """One compiled scene; the rows and the tasks that share it, share its memory and its painter."""

    model: mujoco.MjModel
    robot: RobotDescription
    rest: ArmViews  # the arm as a reset of robosuite leaves it, before a start is set
    hand_body: int
    fingers: np.ndarray  # int [2], in qpos
    detail: float | None  # of pictures, m: ScenePainter
    # position (m) and quaternion of the camera "agentview" as the file has them; None: it has not these
    view: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    _painter: ScenePainter | None = field(default=None, repr=False)

    @property
    def painter(self) -> ScenePainter:
        if self._painter is None:
            self._painter = ScenePainter(self.model, self.detail)
        return self._painter

    def resting_at(self, joints: np.ndarray) -> tuple[RobotDescription, ArmViews]:
        """Return the arm as a reset leaves it that puts its joints [7] there, rad."""
        robot = replace(self.robot, rest_joints=joints.tolist())
        rest = _at_rest(self.model, robot)
        return replace(robot, rest_orientation=rest.rotation.reshape(3, 3).tolist()), rest


@dataclass(eq=False)
class Task:
    """One task of a suite."""

    scene: Scene
    instruction: str
    starts: np.ndarray  # float64 [S, 1 + nq + nv], published: time, positions, velocities
    sampled: np.ndarray  # float64 [N, 1 + nq + nv]: as LIBERO's reset draws them; N may be 0
    goal: Goal
    lamps: dict[int, str]  # site that is shown while a thing is on: site id -> the thing

    @property
    def states(self) -> np.ndarray:
        """All starts, float64 [S + N, 1 + nq + nv]: the published ones, then the sampled ones."""
        return np.concatenate([self.starts, self.sampled])


class Suite:
    """The exported tasks of a suite."""

    def __init__(self, folder: Path, name: str, detail: float | None = None):
        """detail: as ScenePainter's. Raises RunError, with the command that exports it, if the suite is not there."""
        self.folder = folder
        self.name = name
        self.detail = detail
        self.about = _read_json(folder / name / _SUITE_FILE, folder, name)
        with _fitting(folder / name / _SUITE_FILE):
            self.tasks: list[str] = self.about["tasks"]
        self._open: OrderedDict[int, Task] = OrderedDict()
        self._scenes: WeakValueDictionary[str, Scene] = WeakValueDictionary()

    def task(self, number: int) -> Task:
        """Open a task. Raises RunError if it was not exported, or if its files have changed since."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        with _fitting(self.folder / self.name / str(number) / _TASK_FILE):
            task = self._open[number] = self._read(number)
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return task

    def num_sampled(self, number: int) -> int:
        """Return the number of starts that were sampled for a task when it was exported."""
        file = self.folder / self.name / str(number) / "sampled.npy"
        with _fitting(file):
            return len(np.load(file, mmap_mode="r"))

    def digest(self, numbers: Iterable[int]) -> str:
        """Return the SHA-256 of what was exported of these tasks: their files are named in it by their digests."""
        texts = [json.dumps(self.described(number), sort_keys=True) for number in numbers]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def described(self, number: int) -> dict[str, Any]:
        """Return the description of a task as exported, without compiling its scene."""
        asked = self.about["of"][number] if "of" in self.about else number  # variants are exported by their tasks
        file = self.folder / self.name / str(number) / _TASK_FILE
        described = _read_json(file, self.folder, f"{self.name}:{asked}")
        if self.name.endswith(_REWORDED):
            with _fitting(file):
                described = described | {"instruction": export.sentence_of(described["bddl"])}
        return described

    def scene_of(self, number: int) -> str:
        """Return the digest of a task's scene, which tasks share; nothing is compiled."""
        described = self.described(number)
        with _fitting(self.folder / self.name / str(number) / _TASK_FILE):
            shared = {key: described[key] for key in _OF_SCENE} | {"scene.xml": described["sha256"]["scene.xml"]}
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()

    def _read(self, number: int) -> Task:
        folder = self.folder / self.name / str(number)
        described = self.described(number)
        content = {name: _checked(folder / name, digest) for name, digest in described["sha256"].items()}
        digest = self.scene_of(number)
        scene = self._scenes.get(digest)
        if scene is None:
            scene = self._scenes[digest] = _compiled(folder / "scene.xml", described, self.detail)
        model = scene.model
        starts = self._states(folder / "starts.npy", content["starts.npy"], model)
        sampled = self._states(folder / "sampled.npy", content["sampled.npy"], model)
        lamps = {model.site(lamp["site"]).id: lamp["thing"] for lamp in described["lamps"]}
        if not described["goal"] or not described["instruction"].strip():
            raise ValueError("its goal, which would always be reached, or its sentence is empty")
        if set(described["sha256"]) != set(export.STATES_AND_SCENE):
            raise ValueError(f"it names the files {', '.join(described['sha256'])}")
        goal = Goal(model, described["goal"], described["things"])
        return Task(scene, described["instruction"], starts, sampled, goal, lamps)

    @staticmethod
    def _states(file: Path, content: bytes, model: mujoco.MjModel) -> np.ndarray:
        states = np.load(io.BytesIO(content), allow_pickle=False)
        if states.ndim != 2 or states.shape[1] != 1 + model.nq + model.nv:
            raise _changed_file(file, f"its rows have {states.shape[-1]} numbers")
        return states


def contacts_differ(made_by: dict[str, str]) -> bool:
    """Return whether this MuJoCo computes contacts of boxes otherwise than the scene's, which changed with 3.4."""
    return _release(made_by.get("mujoco", mujoco.__version__)) < (3, 4) <= _release(mujoco.__version__)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _compiled(file: Path, described: dict[str, Any], detail: float | None) -> Scene:
    """Compile a scene, and change in it what robosuite changed. Raises RunError if a file that it names has changed."""
    elements = list(ElementTree.parse(file).iter())
    for element in elements:
        if (name := element.get("file")) is not None:
            _check_asset(file.parents[2] / "assets" / name)
    model = mujoco.MjModel.from_xml_path(str(file))
    _collide_as(model, described["multiccd"])
    if mujoco.__version__ == _WRONG_SPARSE:
        model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    for name, rows in described["changed"].items():
        array = getattr(model, name)
        for row, values in rows:
            array[row] = values if array.ndim > 1 else values[0]
    robot = RobotDescription(**described["robot"])
    return Scene(
        model=model,
        robot=robot,
        rest=_at_rest(model, robot),
        hand_body=model.body(robot.hand_body).id,
        fingers=np.array([int(model.joint(name).qposadr[0]) for name in robot.fingers]),
        detail=detail,
        view=_view_of(elements),
    )


def _view_of(elements: Iterable[ElementTree.Element]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return position and quaternion of "agentview" as written: compiling it would scale the quaternion."""
    for element in elements:
        if element.tag == "camera" and element.get("name") == "agentview" and element.get("quat"):
            position, turn = (tuple(map(float, str(element.get(key)).split())) for key in ("pos", "quat"))
            return position, turn
    return None


def _collide_as(model: mujoco.MjModel, has_multiccd: bool) -> None:
    """Let convex shapes touch in as many points as where the scene was made: MuJoCo changed its default in 3.4."""
    flag = getattr(mujoco.mjtDisableBit, "mjDSBL_MULTICCD", None)
    if flag is not None and not has_multiccd:
        model.opt.disableflags |= flag


def _at_rest(model: mujoco.MjModel, robot: RobotDescription) -> ArmViews:
    data = mujoco.MjData(model)
    arm = arm_views(model, data, robot)
    arm.joints[:] = robot.rest_joints
    mujoco.mj_forward(model, data)
    return arm


@contextmanager
def _fitting(file: Path) -> Iterator[None]:
    """Raise RunError for what a description of another form makes the code inside raise."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, OSError, ElementTree.ParseError) as error:
        if isinstance(error, RunError):
            raise
        raise _changed_file(file, f"it does not describe a task ({type(error).__name__}: {error})") from error


def _read_json(file: Path, folder: Path, asked: str) -> dict[str, Any]:
    try:
        described = read_json(file)
        if not isinstance(described, dict):
            raise ValueError(f"it holds a {type(described).__name__}, not an object")
    except FileNotFoundError:
        raise RunError(
            f"LIBERO's {asked} is not in {folder.absolute()}.",
            key="env.libero.scenes",
            value=str(folder),
            cause="rlrun's LIBERO world reads scenes that were exported once from an interpreter with LIBERO.",
            remedy=f"python -m rlrun.envs.libero.export --python LIBERO_PYTHON --out {folder} {asked}; docs/libero.md "
            "tells how that interpreter is made.",
            exit_status=ExitStatus.bad_input,
        ) from None
    except (ValueError, OSError) as error:
        raise _changed_file(file, str(error)) from error
    digest = described.pop(export.OWN_DIGEST, None)
    if digest is not None and digest != export.digest_of(described):
        raise _changed_file(file, "its content does not have the digest that stands in it")
    if digest is None:
        _tell_unprotected(file)
    if described.get("format") != export.FORMAT:
        raise _changed_file(file, f"its format is {described.get('format')}, and this rlrun reads {export.FORMAT}")
    return described


@cache
def _tell_unprotected(file: Path) -> None:
    """Warn once of a description without a digest: other versions may have exported the tasks than the suite."""
    log.warning("%s has no digest: an older rlrun exported it, and changes of it are not noticed", file)


def _checked(file: Path, digest: str) -> bytes:
    """Return a file's content. Raises RunError if it is not what was exported."""
    require_regular(file)
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise _changed_file(file, "its SHA-256 is not the one in task.json")
    return content


def _check_asset(file: Path) -> None:
    """Raise RunError if a mesh or texture is not what its name says, which is its digest."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise _changed_file(file, str(error)) from error
    if export.asset_name(content, file.suffix) != file.name:
        raise _changed_file(file, "its name is not the SHA-256 of its content")


def _changed_file(file: Path, cause: str) -> RunError:
    return RunError(
        f"{file} is not as it was exported.",
        key="env.libero.scenes",
        value=str(file),
        cause=cause,
        remedy="Delete its folder and export the task again; docs/libero.md has the command.",
        exit_status=ExitStatus.bad_input,
    )
