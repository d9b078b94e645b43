"""LIBERO-Plus's variants of a suite: what their names say, what they change, and which split of episodes has which."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rlrun.edges.starts import Split, split_of
from rlrun.envs.libero.export import DEFAULT_SAMPLED
from rlrun.envs.libero.scenes import Suite
from rlrun.envs.libero.spec import PLUS_SUITE, LiberoConfig, PlusText, start_ranges
from rlrun.system.errors import ExitStatus, RunError

# category in the paper, of each axis that these worlds have, and of those that they do not
CATEGORIES = {
    "camera": "Camera Viewpoints",
    "robot": "Robot Initial States",
    "noise": "Sensor Noise",
    "language": "Language Instructions",
    "layout": "Objects Layout",  # the variants that move objects
    "light": "Light Conditions",
    "background": "Background Textures",
    "objects": "Objects Layout",  # the variants that add objects
}
AS_EVER = (0, 0, 100, 0, 0)  # degrees sideways and upwards, distance in percent, degrees about z and y
FOLDS = 5  # one of five variants of a task and level is for test, one for validation
CAMERA_PIVOT = np.array([0.0, 0.0, 0.8])  # m
CAMERA_DECIMALS = 4
NUM_ARMS = 500
ARM_SEED = 42
ARM_JOINTS = np.array([0.0, -0.161037389, 0.0, -2.44459747, 0.0, 2.2267522, np.pi / 4])  # rad, of LIBERO itself
ARM_STEP = 0.1  # rad; each hundred poses are that much farther from it
ARM_DECIMALS = 8

_VIEW = re.compile(
    r"(?P<task>.+?)(?P<language>_language_\d+)?_view_(?P<view>\d+_\d+_\d+_\d+_\d+)"
    r"_initstate_(?P<arm>\d+)(_noise_(?P<noise>\d+))?"
)
_OTHERS = {
    "layout": re.compile(r".+_level\d+_sample\d+"),
    "light": re.compile(r".+_light_\d+"),
    "background": re.compile(r".+_(table|tb)_\d+"),
    "objects": re.compile(r".+_add_\d+"),
}

Pose = tuple[tuple[float, ...], tuple[float, ...]]  # position (m), quaternion w, x, y, z


@dataclass(frozen=True)
class Variant:
    """One variant of a task."""

    number: int  # in LIBERO-Plus's order of the suite
    name: str
    axis: str  # see CATEGORIES
    task: int  # of the suite
    level: int = 0  # of difficulty, 1 to 5; 0: it has none
    view: tuple[int, ...] = AS_EVER
    arm: int = 0  # number of the arm's pose; 0: LIBERO's own
    noise: int = 0  # see sensor_noise; 0: none
    text: str | None = None  # instruction; None: the task's own


def read_name(number: int, name: str, task: int, level: int = 0, text: str | None = None) -> Variant:
    """Return what a variant's name says. Raises ValueError for a name that LIBERO-Plus does not form.

    Example: "turn_on_the_stove_view_0_0_100_0_0_initstate_310" -> Variant(…, axis="robot", arm=310)
    """
    found = _VIEW.fullmatch(name)
    if found is None:
        for axis, pattern in _OTHERS.items():
            if pattern.fullmatch(name):
                return Variant(number, name, axis, task, level)
        raise ValueError(f"{name} is not the name of a variant")
    view = tuple(int(part) for part in found["view"].split("_"))
    arm = int(found["arm"])
    noise = int(found["noise"] or 0)
    changed = {"language": bool(found["language"]), "camera": view != AS_EVER, "robot": arm > 0, "noise": noise > 0}
    axes = [axis for axis, is_changed in changed.items() if is_changed]
    if len(axes) != 1 or arm > NUM_ARMS:
        raise ValueError(f"{name} changes {' and '.join(axes) or 'nothing'}")
    return Variant(number, name, axes[0], task, level, view, arm, noise, text)


@cache
def camera_pose(pose: Pose, view: tuple[int, ...]) -> Pose:
    """Return where LIBERO-Plus puts the camera that LIBERO has at `pose`: rounded, also if the view is as ever."""
    sideways, upwards, percent, about_z, about_y = view
    position = np.array(pose[0])
    turn = np.array(pose[1])
    if upwards:
        by = _about_y(upwards)
        position = _rounded(_turned(by, position - CAMERA_PIVOT) + CAMERA_PIVOT)
        turn = _rounded(_unit(_product(by, _unit(turn))))
    by = _about_z(sideways)
    position = _rounded(_turned(by, position))
    turn = _rounded(_unit(_product(by, _unit(turn))))
    if percent != AS_EVER[2]:
        position = _rounded(CAMERA_PIVOT + (position - CAMERA_PIVOT) * (percent / 100))
    for angle, rotation in ((about_z, _about_z), (about_y, _about_y)):
        if angle:
            turn = _rounded(_unit(_product(rotation(angle), _unit(turn))))
    return tuple(position.tolist()), tuple(turn.tolist())


def _about_z(degrees: float) -> np.ndarray:
    half = math.radians(degrees) / 2
    return np.array([math.cos(half), 0.0, 0.0, math.sin(half)])


def _about_y(degrees: float) -> np.ndarray:
    """Return the quaternion that turns from the axis x towards the axis z."""
    half = math.radians(-degrees) / 2
    return np.array([math.cos(half), 0.0, math.sin(half), 0.0])


def _product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    real = one[0] * other[0] - one[1:] @ other[1:]
    return np.array([real, *(one[0] * other[1:] + other[0] * one[1:] + np.cross(one[1:], other[1:]))])


def _turned(turn: np.ndarray, point: np.ndarray) -> np.ndarray:
    w, x, y, z = turn.tolist()
    matrix = [
        [x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), -x * x + y * y - z * z + w * w, 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), -x * x - y * y + z * z + w * w],
    ]
    return np.array(matrix) @ point  # in SciPy's order of sums: one of its views lies between two rounded numbers


def _unit(turn: np.ndarray) -> np.ndarray:
    return turn / np.linalg.norm(turn)


def _rounded(numbers: np.ndarray) -> np.ndarray:
    return np.array([round(number, CAMERA_DECIMALS) for number in numbers.tolist()])


@cache
def _arms() -> np.ndarray:
    draw = np.random.RandomState(ARM_SEED)
    poses = np.zeros((NUM_ARMS, len(ARM_JOINTS)))
    for k in range(NUM_ARMS):
        direction = draw.randn(len(ARM_JOINTS))
        far = ARM_STEP * (k // 100 + 1)
        poses[k] = ARM_JOINTS + direction / np.linalg.norm(direction) * far
    return np.round(poses, ARM_DECIMALS)


def arm_joints(number: int) -> np.ndarray:
    """Return the joints [7] of an arm's pose, rad; numbers are 1 to 500."""
    return _arms()[number - 1]


class Variants:
    """The variants that `env.libero.plus` names, by task and split. Each is of one split only."""

    def __init__(self, settings: LiberoConfig, table: Suite, tasks: Sequence[int]):
        """table: the suite's variants as exported. Raises RunError if they do not fit."""
        self.table = table
        self._settings = settings
        self._tasks = tuple(tasks)
        self._num_starts = {
            split: DEFAULT_SAMPLED if wanted is None else len(wanted)
            for split, wanted in start_ranges(settings).items()
        }
        levels = set(settings.plus_levels)
        chosen = [
            variant
            for variant in read_table(table)
            if variant.axis in settings.plus and variant.task in tasks and (not levels or variant.level in levels)
        ]
        self._by_split = split_variants(chosen, settings.plus_held_out)

    def of(self, seed: int, task: int) -> Variant:
        """Return the variant of a task that a reset seed chooses: all of its split in turn, with each start.

        Raises RunError if the split has none.
        """
        split = split_of(seed)
        there = self._by_split[split].get(task)
        if not there:
            raise RunError(
                f"Task {task} of {self._settings.suite} has no variant for {split.value}.",
                key=self._settings.key("plus"),
                value=list(self._settings.plus),
                cause=f"Levels {list(self._settings.plus_levels) or 'of all kinds'}; of five variants of a task and "
                "level, one is held out for test and one for validation (env.libero.plus_held_out).",
                remedy="Take more levels or categories, or env.libero.plus_held_out=false to train and test on all.",
                exit_status=ExitStatus.bad_config,
            )
        at = seed // len(self._tasks)
        return there[(at + at // math.lcm(len(there), self._num_starts[split])) % len(there)]

    def instruction(self, variant: Variant, of_task: str) -> str:
        """Return the sentence of a variant of a task whose own sentence is `of_task`."""
        if variant.text is not None:
            return variant.text
        is_published = self._settings.plus_text is PlusText.published
        return published_text(variant.name) if is_published else of_task

    def digest(self) -> str:
        """Return the SHA-256 of the variants, and of the scenes of those that move objects."""
        rows = [repr(variant) for variant in self.all()]
        moved = [variant.number for variant in self.all() if variant.axis == "layout"]
        return hashlib.sha256("\n".join([*rows, self.table.digest(moved)]).encode()).hexdigest()

    def all(self) -> list[Variant]:
        """Return the variants of all splits, each once."""
        every = (variant for by_task in self._by_split.values() for group in by_task.values() for variant in group)
        return sorted(dict.fromkeys(every), key=lambda variant: variant.number)


def read_table(table: Suite) -> list[Variant]:
    """Return all variants of an exported table, those with which these worlds cannot do anything too."""
    about = table.about
    texts = about["texts"]
    rows = enumerate(zip(table.tasks, about["of"], about["levels"], strict=True))
    return [read_name(k, name, task, int(level), texts.get(str(k))) for k, (name, task, level) in rows]


def published_text(name: str) -> str:
    """Return the sentence that LIBERO-Plus gives to policies: made of the name, it ends with the variant's numbers."""
    first = name.find("SCENE")
    skipped = first + (8 if "SCENE10" in name else 7) if name[0].isupper() else 0
    return " ".join(name[skipped:].split("_"))


def split_variants(variants: Iterable[Variant], is_held_out: bool) -> dict[Split, dict[int, list[Variant]]]:
    """Return the variants of each task by split, in an order that their names give.

    is_held_out: of five of a task, axis and level, one is for test and one for validation; else all are for each.
    """
    found: dict[Split, dict[int, list[Variant]]] = {split: {} for split in Split}
    seen: dict[tuple[int, str, int], int] = {}
    for variant in sorted(variants, key=lambda one: hashlib.sha256(one.name.encode()).digest()):
        group = variant.task, variant.axis, variant.level
        at = seen[group] = seen.get(group, -1) + 1
        own = {0: Split.test, 1: Split.validation}.get(at % FOLDS, Split.train)
        for split in [own] if is_held_out else Split:
            found[split].setdefault(variant.task, []).append(variant)
    return found


def variants_of(settings: LiberoConfig, suite: Suite, tasks: Sequence[int]) -> Variants | None:
    """Return the variants that a world takes; None: it is LIBERO itself. Raises RunError without the exported table."""
    if not settings.plus:
        return None
    return Variants(settings, Suite(suite.folder, PLUS_SUITE.format(suite.name), suite.detail), tasks)
