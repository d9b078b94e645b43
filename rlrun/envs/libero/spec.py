"""Spec and settings of LIBERO."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from rlrun.config.faults import wrong_names
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import NOT_NEGATIVE, Range, RemovedKey, Section, bounded, for_demonstrations, named
from rlrun.config.simulator_process import ProcessSpec
from rlrun.config.simulator_spec import (
    GRIPPER_OPEN_01,
    RAW,
    WRIST,
    Component,
    Conventions,
    EvaluationSpec,
    PlannedSpaces,
    ResourceSpec,
    SimulatorMemory,
    SimulatorSpec,
    SimulatorTime,
    Splits,
    WireSpec,
    WorldSpec,
)
from rlrun.edges.starts import Split
from rlrun.envs import opengl
from rlrun.system.errors import RunError

SAMPLED = "sampled"
EVALUATION_SEED = 0  # LIBERO seeds its evaluation with it, and `export` the published starts
NUM_PUBLISHED = 50  # starts of each task
# Control steps of an episode in OpenVLA's evaluation, by suite; a suite of LIBERO-PRO has those of its original
PUBLISHED_STEPS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
PUBLISHED_SETTLE_STEPS = 10
PUBLISHED_HZ = 20
_SHOWN = ("turn", "colours", "crop", "state", "sentence")  # of these, what a policy sees
_CONVENTIONS = ("idle_gripper", *_SHOWN)  # keys whose defaults are OpenVLA's
PRO_SUITES = ("lan", "object", "swap", "task", "env")  # suffixes of LIBERO-PRO's suites
# Of an env worker. Measured with Mesa for a scene of libero_goal: 0.68 GB of host memory, 0.52
# GB of textures and meshes, 6 MB a row. A card was not measured: its share is estimated from its textures and meshes.
MAX_OPEN = 2  # tasks that a process keeps beside those of its rows
PROCESS_BYTES = 300_000_000
ROW_BYTES = 6_000_000
SCENE_BYTES = 700_000_000
# of a card
OPENGL_BYTES = 300_000_000
DRAWN_SCENE_BYTES = 450_000_000
ONE_SCENE = ("libero_goal", "libero_goal_lan", "libero_goal_task")  # suites whose tasks share a scene
NUM_TASKS = {"libero_90": 90}  # of suites with other than ten
CAMERAS = ("agentview", "robot0_eye_in_hand")


PLUS_AXES = ("camera", "robot", "noise", "language", "layout")  # of LIBERO-Plus; docs/libero.md says what is left out
PLUS_SUITE = "{}_plus"  # folder of a suite's variants
NUM_MOVED = 20  # variants of a task that move objects, at most
PLUS_LEVELS = range(1, 6)  # of difficulty


class PlusText(Enum):
    task = "task"  # the task's own sentence
    published = "published"  # as LIBERO-Plus gives it to policies: with the numbers of the variant's name at its end


class Pictures(Enum):
    exact = "exact"  # as LIBERO draws them
    fast = "fast"  # without reflections, shadows and details below half a pixel: for policies trained on them only


class Turn(Enum):
    rotated = "rotated"  # by 180 degrees from how robosuite returns it, as OpenVLA, openpi and LeRobot show it
    raw = "raw"  # as robosuite returns it
    upside_down = "upside_down"  # rotated, then exchanged top and bottom
    mirrored = "mirrored"  # rotated, then exchanged left and right


class Colours(Enum):
    rgb = "rgb"
    bgr = "bgr"


class StateForm(Enum):
    axis_angle = "axis_angle"  # hand position (m), its axis-angle as robosuite computes it (rad), two fingers (m)
    short_axis_angle = "short_axis_angle"  # the axis-angle of at most half a turn
    euler = "euler"  # roll, pitch, yaw in place of the axis-angle
    one_finger = "one_finger"  # a zero in place of the second finger
    fingers_first = "fingers_first"  # both fingers before the hand
    zeros = "zeros"  # no state


class Sentence(Enum):
    published = "published"  # as LIBERO's task names it: lower case
    capital = "capital"  # with a capital and a full stop
    upper = "upper"  # in capitals
    underscores = "underscores"  # as in file names


@dataclass
class SuiteConfig(Section):
    """Settings of a world of exported tasks, whatever steps and draws it. docs/libero.md"""

    section_name = "libero"  # below env

    cameras: list[str] = named(list(CAMERAS))
    suite: str = named("libero_spatial")  # libero_object, libero_goal, libero_10, libero_90, or one of LIBERO-PRO
    task_ids: list[int] = bounded([], NOT_NEGATIVE)  # tasks of the suite, cycled by reset seed; empty: all
    # starts of each split: "sampled" by LIBERO's reset when the task was exported, or a range of the published ones
    train_starts: str = named(SAMPLED)
    validation_starts: str = named("0:10")
    test_starts: str = named("10:50")
    settle_steps: int = bounded(10, NOT_NEGATIVE)  # control steps before each episode, in which objects come to rest
    idle_gripper: float = bounded(-1.0, Range(-1, 1))  # gripper in these steps: -1 opens, 0 holds, 1 closes
    scenes: str = ".cache/rlrun/libero"  # folder of the exported tasks on the nodes of the env workers
    has_openness: bool = False  # True: gripper 1 open, 0 closed, as OpenVLA's checkpoints; False: -1 open, 1 closed
    # conventions in which published evaluations differ, for policies from elsewhere: docs/reproduce.md
    turn: Turn = Turn.rotated  # of pictures
    colours: Colours = Colours.rgb  # order of a picture's channels
    crop: float = bounded(1.0, Range(0.05, 1.0))  # area share of the middle of a picture that is shown at its size
    state: StateForm = StateForm.axis_angle  # numbers of the state
    sentence: Sentence = Sentence.published  # form of the task's sentence

    def key(self, name: str) -> str:
        """Return the key of a setting. Example: "env.libero.suite"."""
        return f"env.{self.section_name}.{name}"


@dataclass
class LiberoConfig(SuiteConfig):
    """Settings for env.simulator=libero."""

    removed = {
        "backend": RemovedKey(
            "Leave it out: rlrun steps exported tasks itself; robosuite's own LIBERO is an oracle in scripts/oracles.",
            ("native",),
        ),
        "physics": RemovedKey(
            "Leave it out: MuJoCo steps this world. On a GPU: install packages/rlrun-libero-warp, and take "
            "env.simulator=libero_warp with its section env.libero_warp.",
            ("mujoco",),
        ),
    }

    pictures: Pictures = Pictures.exact
    expert: str | None = for_demonstrations(None)  # module:FUNCTION of expert(view) -> action, for demos; None: none
    plus: list[str] = named([])  # LIBERO-Plus: camera, robot, noise, language, layout vary the tasks; empty: none does
    plus_levels: list[int] = bounded([], Range(1, 5))  # difficulty of these variants; empty: all
    plus_held_out: bool = True  # of five variants, one is for test and one for validation; False: each split has all
    plus_text: PlusText = PlusText.task  # instruction of the variants that do not rewrite it


def has_variants(own: SuiteConfig) -> bool:
    """Return whether variants of LIBERO-Plus take the place of the tasks."""
    return isinstance(own, LiberoConfig) and bool(own.plus)


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return the sizes: hand position, axis-angle and two fingers; six increments of the hand and the gripper."""
    cameras = tuple(env.section(SuiteConfig).cameras)
    return PlannedSpaces(len(cameras), 8, 7, cameras, float(env.action_hz))


def control_time(env: EnvConfig) -> SimulatorTime:
    """Return the seconds of a control step by benchmarks/libero.py; a picture's are assumed, of a card's EGL."""
    return SimulatorTime(step_s=0.0045, env_step_s=0.006, picture_s=0.01)  # rows are controlled together


def start_range(text: str) -> range | None:
    """Return the numbers of published starts; None: sampled ones. Raises ValueError. Example: "0:40" -> range(40)."""
    if text == SAMPLED:
        return None
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ValueError(f"{text!r} is neither {SAMPLED} nor a range FIRST:END of whole numbers with FIRST below END")
    return range(int(first), int(end))


def start_ranges(own: SuiteConfig) -> dict[Split, range | None]:
    """Return the published starts of each split; None: sampled ones. Raises ValueError."""
    return {split: start_range(text) for split, text in start_texts(own).items()}


def start_texts(own: SuiteConfig) -> dict[Split, str]:
    """Return the starts of each split as they are configured."""
    return {Split.train: own.train_starts, Split.validation: own.validation_starts, Split.test: own.test_starts}


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for cameras and variants that LIBERO has not, and for a range of starts that is none."""
    own = config.env.section(SuiteConfig)
    yield from wrong_names(own.key("cameras"), own.cameras, CAMERAS)
    unknown = [] if not isinstance(own, LiberoConfig) else [axis for axis in own.plus if axis not in PLUS_AXES]
    if unknown:
        yield RunError(
            f"LIBERO-Plus has no variants '{unknown[0]}' here.",
            key=own.key("plus"),
            value=unknown,
            remedy=f"Take some of {', '.join(PLUS_AXES)}; docs/libero.md says which are left out, and why.",
        )
    if isinstance(own, LiberoConfig) and not own.plus:
        default = LiberoConfig()
        for name in ("plus_levels", "plus_held_out", "plus_text"):
            if getattr(own, name) != getattr(default, name):
                yield RunError(
                    f"{own.key(name)} is about variants of LIBERO-Plus, and this world has none.",
                    key=own.key(name),
                    value=getattr(own, name),
                    remedy=f"Name their kinds, as {own.key('plus')}=[camera], or leave the key out.",
                )
    if len(set(own.task_ids)) < len(own.task_ids):
        yield RunError(
            f"{own.key('task_ids')} names a task twice, so that its starts would be counted twice.",
            key=own.key("task_ids"),
            value=own.task_ids,
            remedy=f"Name each task once: {own.key('task_ids')}={list(dict.fromkeys(own.task_ids))}.",
        )
    for split, text in start_texts(own).items():
        try:
            start_range(text)
        except ValueError as error:
            yield RunError(
                "The range of starts cannot be read.",
                key=own.key(f"{split.value}_starts"),
                value=text,
                cause=str(error),
                remedy='Write "0:40" for the first forty published starts of each task, quoted in YAML, or sampled.',
            )


def detail_of_pictures(env: EnvConfig) -> float | None:
    """Return the size of the details of meshes that are left out, m; None: nothing is.

    A pixel of LIBERO's cameras, which see 45 degrees, covers 0.83 m / env.image_size at a metre's distance.
    """
    return None if env.section(LiberoConfig).pictures is Pictures.exact else 0.5 / env.image_size


def splits(env: EnvConfig) -> Splits:
    """Return where episodes of each split begin, and what differs from LIBERO's protocol."""
    own = env.section(LiberoConfig)
    is_fast = own.pictures is Pictures.fast
    deviations = ["pictures have no reflections and shadows, and coarser meshes"] if is_fast else []
    found = splits_of(env, [*deviations, *_plus_deviations(own)])
    if not own.plus:
        return found
    kinds = f"LIBERO-Plus, {' and '.join(own.plus)}"
    if not own.plus_held_out:
        shared = f"Training in this world has the test's variants ({kinds}, env.libero.plus_held_out=false)"
        return replace(found, trained_on_test=shared, num_test=None)
    return Splits(
        f"{found.train} of the variants ({kinds}) that are not held out",
        f"{found.validation} of those that are held out for validation, about a fifth",
        f"{found.test} of those that are held out for test, a quarter to a third",
        found.trained_on_test,
        found.deviations,
    )


def _plus_deviations(own: LiberoConfig) -> Iterator[str]:
    """Yield what differs from how LIBERO-Plus tests: every variant once, with its own sentence."""
    if not own.plus:
        return
    yield f"variants of LIBERO-Plus take the place of the tasks ({', '.join(own.plus)})"
    if own.plus_levels:
        yield f"of its difficulties, {own.plus_levels}"


def splits_of(env: EnvConfig, deviations: list[str]) -> Splits:
    """Return the splits of a world that itself deviates from LIBERO's in `deviations`, a sentence each."""
    own = env.section(SuiteConfig)
    ranges = start_ranges(own)
    words = {split: _words(one) for split, one in ranges.items()}
    trained_on_test = ""
    if _overlap(ranges[Split.train], ranges[Split.test]):
        trained_on_test = f"Trained on test starts: training {words[Split.train]}, test {words[Split.test]}"
    names = words[Split.train], words[Split.validation], words[Split.test]
    test = ranges[Split.test]
    num_test = None if test is None else len(test) * _num_tasks(own)
    return Splits(*names, trained_on_test, (*deviations, *_deviations(env, test)), num_test)


def _deviations(env: EnvConfig, test: range | None) -> Iterator[str]:
    """Yield what differs from LIBERO's starts, and from OpenVLA's evaluation, which others repeat."""
    own = env.section(SuiteConfig)
    if test != range(NUM_PUBLISHED):
        yield f"of each task's {NUM_PUBLISHED} published starts, the test takes {_words(test)}"
    if own.task_ids:
        yield f"of the suite {own.suite}, tasks {own.task_ids}"
    published = own_limit(env)
    if published not in (None, env.max_control_steps):
        yield f"episodes end after {env.max_control_steps} control steps, in OpenVLA's evaluation after {published}"
    if own.settle_steps != PUBLISHED_SETTLE_STEPS:
        there = f"in OpenVLA's evaluation for {PUBLISHED_SETTLE_STEPS}"
        yield f"objects settle for {own.settle_steps} control steps, {there}"
    if env.action_hz != PUBLISHED_HZ:
        yield f"{env.action_hz:g} control steps a second, in LIBERO {PUBLISHED_HZ}"
    for key, word in _unusual(own, _CONVENTIONS).items():
        yield f"{key}={word}, which is not the convention of OpenVLA's evaluation"


def _unusual(own: SuiteConfig, names: Sequence[str]) -> dict[str, str]:
    """Return the keys of `names` whose values are not the defaults, with these values as they are written."""
    values = {name: getattr(own, name) for name in names if getattr(own, name) != getattr(SuiteConfig(), name)}
    return {own.key(name): value.value if isinstance(value, Enum) else f"{value:g}" for name, value in values.items()}


def unusual_keys(env: EnvConfig) -> dict[str, str]:
    """Return the keys of pictures, states and sentences that are not the defaults, which clients send."""
    return _unusual(env.section(SuiteConfig), _SHOWN)


def own_limit(env: EnvConfig) -> int | None:
    """Return the control steps of an episode in OpenVLA's evaluation of the suite; None: it has another suite."""
    return of_suite(PUBLISHED_STEPS, env.section(SuiteConfig).suite)


def task_name(env: EnvConfig, seed: int) -> str:
    """Return the name of the task that a reset seed chooses; "": of another suite than LIBERO's and LIBERO-PRO's.

    Example: "libero_goal:7"
    """
    own = env.section(SuiteConfig)
    if of_suite(PUBLISHED_STEPS, own.suite) is None:
        return ""
    tasks = own.task_ids or range(_num_tasks(own))
    return f"{own.suite}:{tasks[seed % len(tasks)]}"


def _num_tasks(own: SuiteConfig) -> int:
    return len(own.task_ids) or of_suite(NUM_TASKS, own.suite) or 10


def of_suite(values: Mapping[str, int], suite: str) -> int | None:
    """Return the value of a suite, or of the one that it varies, as libero_10_swap does libero_10; None: none has."""
    return next((value for name, value in values.items() if re.fullmatch(rf"{name}(_\D.*)?", suite)), None)


def _words(starts: range | None) -> str:
    return "sampled starts" if starts is None else f"published starts {starts.start} to {starts.stop - 1}"


def _overlap(one: range | None, other: range | None) -> bool:
    if one is None or other is None:
        return one is other
    return max(one.start, other.start) < min(one.stop, other.stop)


def perturbations(env: EnvConfig) -> dict[str, EnvConfig]:
    """Return LIBERO-PRO's suites of this suite and LIBERO-Plus's variants by name; they must be exported as well."""
    own = env.section(SuiteConfig)
    if not isinstance(own, LiberoConfig):
        return {name: _changed(env, suite=f"{own.suite}_{name}") for name in PRO_SUITES}
    worlds = {name: _changed(env, suite=f"{own.suite}_{name}", plus=[]) for name in PRO_SUITES}
    return worlds | {f"plus_{axis}": _with_variants(env, own, axis) for axis in PLUS_AXES}


def parts_of_perturbations(env: EnvConfig) -> dict[str, EnvConfig]:
    """Return LIBERO-Plus's variants by category and difficulty, and those that are held out from training."""
    own = env.section(LiberoConfig)
    worlds: dict[str, EnvConfig] = {}
    for axis in PLUS_AXES:
        worlds |= {f"plus_{axis}_{level}": _with_variants(env, own, axis, [level]) for level in PLUS_LEVELS}
        if axis not in own.plus or own.plus_held_out:  # else training had all variants, and none is held out
            worlds[f"plus_{axis}_held_out"] = _changed(_with_variants(env, own, axis), plus_held_out=True)
    return worlds


def _with_variants(env: EnvConfig, own: LiberoConfig, axis: str, levels: Sequence[int] = ()) -> EnvConfig:
    """Return the world of a category: as published with all its variants, or with those that training did not have."""
    return _changed(env, plus=[axis], plus_levels=list(levels), plus_held_out=axis in own.plus and own.plus_held_out)


def _changed(env: EnvConfig, **settings: Any) -> EnvConfig:
    own = env.section(SuiteConfig)
    return replace(env, sections={own.section_name: replace(own, **settings)})


def device_memory(env: EnvConfig) -> SimulatorMemory:
    """Return the accelerator memory of an env worker: OpenGL's.

    Envs share the textures and meshes of their scene, and take no memory of the card themselves.
    """
    return SimulatorMemory(OPENGL_BYTES, 0, DRAWN_SCENE_BYTES, MAX_OPEN, num_scenes(env))


def host_memory(env: EnvConfig) -> SimulatorMemory:
    """Return the host memory of an env worker, whose envs share compiled scenes."""
    return SimulatorMemory(PROCESS_BYTES, ROW_BYTES, SCENE_BYTES, MAX_OPEN, num_scenes(env))


def num_scenes(env: EnvConfig) -> int:
    """Return how many scenes the tasks of a run have at most: those of libero_goal, and of the suites that change
    its sentences or goals alone, share one.

    Each of LIBERO-Plus's variants that move objects has a scene of its own.
    """
    own = env.section(SuiteConfig)
    num_tasks = _num_tasks(own)
    num_shared = 1 if own.suite in ONE_SCENE else num_tasks
    has_moved = isinstance(own, LiberoConfig) and "layout" in own.plus
    return num_shared + (NUM_MOVED * num_tasks if has_moved else 0)


def conventions(env: EnvConfig) -> Conventions:
    """Return the names and formats of vla-eval's LIBEROBenchmark, and its parameters for this very world."""
    own = env.section(SuiteConfig)
    gripper = GRIPPER_OPEN_01 if own.has_openness else "binary_close_positive"
    actions = (
        Component("position", 3, "delta_xyz"),
        Component("rotation", 3, "axis_angle"),
        Component("gripper", 1, gripper),
    )
    # fixtures stand where LIBERO's seed puts them; robosuite's axis-angle may be of more than half a turn
    has_robosuites = own.state is StateForm.axis_angle
    same = {"seed": EVALUATION_SEED, "env_seed": EVALUATION_SEED, "quat_no_antipodal": has_robosuites}
    same |= {"absolute_action": False, "num_steps_wait": own.settle_steps}
    cameras = dict(zip(CAMERAS, ("agentview", WRIST), strict=True))
    is_nameless = own.state in (StateForm.euler, StateForm.fingers_first, StateForm.zeros)
    return Conventions(actions, RAW if is_nameless else "eef_pos3_axisangle3_gripper2", cameras, same)


SPEC = SimulatorSpec(
    "libero",
    "rlrun.envs.libero.libero_env:make_libero",
    WorldSpec(
        planned_spaces,
        has_expert=lambda env: env.section(LiberoConfig).expert is not None,
        own_limit=own_limit,
    ),
    LiberoConfig,
    checks,
    ResourceSpec(
        memory=device_memory,
        host_memory=host_memory,
        time=control_time,
        node_checks="rlrun.doctor.simulator_checks:MUJOCO_RENDERER",
    ),
    ProcessSpec(
        packages=("mujoco",),
        variables=opengl.VARIABLES,
        environment=opengl.environment,
    ),
    EvaluationSpec(
        splits=splits, task=task_name, perturbations=perturbations, parts_of_perturbations=parts_of_perturbations
    ),
    WireSpec(conventions, unusual_keys),
)
