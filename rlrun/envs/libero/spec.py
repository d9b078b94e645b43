"""Spec and settings of LIBERO."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import NOT_NEGATIVE, Range, Section, bounded, named
from rlrun.config.simulator_evaluation import EvaluationSpec, Splits
from rlrun.config.simulator_process import Decided, ProcessSpec, Variable
from rlrun.config.simulator_resources import ResourceSpec, SimulatorMemory, SimulatorTime
from rlrun.config.simulator_spec import SimulatorSpec
from rlrun.config.simulator_wire import GRIPPER_OPEN_01, Component, Conventions, WireSpec
from rlrun.config.simulator_world import PlannedSpaces, WorldSpec
from rlrun.edges.starts import Split
from rlrun.envs import opengl
from rlrun.system.errors import RunError

SAMPLED = "sampled"
EVALUATION_SEED = 0  # LIBERO seeds its evaluation with it, and `export` the published starts
NUM_PUBLISHED = 50  # starts of each task
# Control steps of an episode in OpenVLA's evaluation, by suite; a suite of LIBERO-PRO has those of its original
PUBLISHED_STEPS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
PUBLISHED_SETTLE_STEPS = 10
PRO_SUITES = ("lan", "object", "swap", "task", "env")  # suffixes of LIBERO-PRO's suites
WARP_CACHE = Variable(
    "WARP_CACHE_PATH", ("env",), Decided.node, "the env workers of a node share the kernels that MuJoCo Warp compiles"
)
# Of one env worker on MuJoCo Warp. Seconds are estimates; bytes are those of the arrays for libero_goal.
# a picture of 224 px
WARP_STEP_S = 0.03
WARP_ROW_S = 1 / 30_000
WARP_PICTURE_S = 1 / 10_000
WARP_FIRST_BYTES = 1_500_000_000
WARP_ROW_BYTES = 500_000
WARP_COMPILE_S = 120  # once for each card's architecture and for each kind of scene
WARP_PIXEL_BYTES = 7  # packed by the ray tracer, and as the policy sees them
# Of an env worker on MuJoCo's own physics. Measured with Mesa for a scene of libero_goal: 0.68 GB of host memory, 0.52
# GB of textures and meshes, 6 MB a row. A card was not measured: its share is estimated from its textures and meshes.
MAX_OPEN = 2  # tasks that a process keeps beside those of its rows
PROCESS_BYTES = 300_000_000
ROW_BYTES = 6_000_000
SCENE_BYTES = 700_000_000
# of a card
OPENGL_BYTES = 300_000_000
DRAWN_SCENE_BYTES = 450_000_000
NUM_TASKS = {"libero_90": 90}  # of suites with other than ten
CAMERAS = ("agentview", "robot0_eye_in_hand")


class Backend(Enum):
    native = "native"  # MuJoCo with rlrun's controller and predicates, from scenes exported once
    robosuite = "robosuite"  # LIBERO's own code, in an interpreter that has it


class Physics(Enum):
    mujoco = "mujoco"  # on the CPU, row by row
    warp = (
        "warp"  # MuJoCo Warp: all rows together, and pictures by its ray tracer, on the worker's GPU; else on the CPU
    )


class Pictures(Enum):
    exact = "exact"  # as LIBERO draws them
    fast = "fast"  # without reflections, shadows and details below half a pixel: for policies trained on them only


@dataclass
class LiberoConfig(Section):
    """Settings for env.simulator=libero."""

    suite: str = named("libero_spatial")  # libero_object, libero_goal, libero_10, libero_90, or one of LIBERO-PRO
    task_ids: list[int] = bounded([], NOT_NEGATIVE)  # tasks of the suite, cycled by reset seed; empty: all
    # starts of each split: "sampled" by LIBERO's reset when the task was exported, or a range of the published ones
    train_starts: str = named(SAMPLED)
    validation_starts: str = named("0:10")
    test_starts: str = named("10:50")
    settle_steps: int = bounded(10, NOT_NEGATIVE)  # control steps before each episode, in which objects come to rest
    idle_gripper: float = bounded(-1.0, Range(-1, 1))  # gripper in these steps: -1 opens, 0 holds, 1 closes
    backend: Backend = Backend.native
    scenes: str = ".cache/rlrun/libero"  # folder of the exported tasks on the nodes of the env workers (backend=native)
    physics: Physics = Physics.mujoco  # what steps the exported tasks (backend=native)
    pictures: Pictures = Pictures.exact
    expert: str | None = None  # module:FUNCTION of expert(view) -> action, for rlrun.demos; None: no expert
    has_openness: bool = False  # True: gripper 1 open, 0 closed, as OpenVLA's checkpoints; False: -1 open, 1 closed


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return the sizes: hand position, axis-angle and two fingers; six increments of the hand and the gripper."""
    return PlannedSpaces(len(env.cameras), 8, 7, tuple(env.cameras), float(env.action_hz))


def is_warp(env: EnvConfig) -> bool:
    """Return whether MuJoCo Warp steps the world."""
    return env.section(LiberoConfig).physics is Physics.warp


def control_time(env: EnvConfig) -> SimulatorTime:
    """Return the seconds of a control step by benchmarks/libero.py; a picture's are assumed, of a card's EGL.

    Those of Warp are estimates from what its authors report of other scenes: it ran here on its CPU device only.
    """
    if env.section(LiberoConfig).backend is Backend.robosuite:
        return SimulatorTime(env_step_s=0.04, picture_s=0.01)
    if is_warp(env):  # rows step together, and the more there are, the longer it takes
        rows = env.num_envs // max(1, env.num_workers)
        picture_s = WARP_PICTURE_S * (env.image_size / 224) ** 2
        return SimulatorTime(step_s=WARP_STEP_S + rows * WARP_ROW_S, picture_s=picture_s)
    return SimulatorTime(step_s=0.0045, env_step_s=0.006, picture_s=0.01)  # rows are controlled together


def start_range(text: str) -> range | None:
    """Return the numbers of published starts; None: sampled ones. Raises ValueError. Example: "0:40" -> range(40)."""
    if text == SAMPLED:
        return None
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ValueError(f"{text!r} is neither {SAMPLED} nor a range FIRST:END of whole numbers with FIRST below END")
    return range(int(first), int(end))


def start_ranges(own: LiberoConfig) -> dict[Split, range | None]:
    """Return the published starts of each split; None: sampled ones. Raises ValueError."""
    return {split: start_range(text) for split, text in start_texts(own).items()}


def start_texts(own: LiberoConfig) -> dict[Split, str]:
    """Return the starts of each split as they are configured."""
    return {Split.train: own.train_starts, Split.validation: own.validation_starts, Split.test: own.test_starts}


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for a range of starts that is none, and for an expert that would have no effect."""
    own = config.env.section(LiberoConfig)
    for split, text in start_texts(own).items():
        try:
            start_range(text)
        except ValueError as error:
            yield RunError(
                "The range of starts cannot be read.",
                key=f"env.libero.{split.value}_starts",
                value=text,
                cause=str(error),
                remedy='Write "0:40" for the first forty published starts of each task, quoted in YAML, or sampled.',
            )
    if own.expert is not None and (own.backend is Backend.robosuite or is_warp(config.env)):
        yield RunError(
            "'env.libero.expert' would have no effect.",
            key="env.libero.expert",
            value=own.expert,
            cause="Experts read the state of rlrun's own world on MuJoCo.",
            remedy="Set env.libero.backend=native env.libero.physics=mujoco, or drop it.",
        )
    yield from _warp_checks(config)


def _warp_checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for settings that Warp cannot fulfil."""
    own = config.env.section(LiberoConfig)
    if not is_warp(config.env):
        return
    if own.backend is Backend.robosuite:
        yield RunError(
            "robosuite's LIBERO does not run on MuJoCo Warp.",
            key="env.libero.physics",
            value="warp",
            cause="env.libero.backend=robosuite is LIBERO's own code, on MuJoCo.",
            remedy="Take env.libero.backend=native, or env.libero.physics=mujoco.",
        )
    if own.pictures is Pictures.exact:
        yield RunError(
            "MuJoCo Warp cannot draw LIBERO's pictures exactly.",
            key="env.libero.pictures",
            value="exact",
            cause="Its ray tracer draws no reflections, no highlights and no soft edges.",
            remedy="Set env.libero.pictures=fast for a policy that is trained on such pictures, or "
            "env.libero.physics=mujoco.",
        )


def detail_of_pictures(env: EnvConfig) -> float | None:
    """Return the size of the details of meshes that are left out, m; None: nothing is.

    A pixel of LIBERO's cameras, which see 45 degrees, covers 0.83 m / env.image_size at a metre's distance.
    """
    return None if env.section(LiberoConfig).pictures is Pictures.exact else 0.5 / env.image_size


def splits(env: EnvConfig) -> Splits:
    """Return where episodes of each split begin, and what differs from LIBERO's protocol."""
    own = env.section(LiberoConfig)
    ranges = start_ranges(own)
    words = {split: _words(one) for split, one in ranges.items()}
    trained_on_test = ""
    if _overlap(ranges[Split.train], ranges[Split.test]):
        trained_on_test = f"Trained on test starts: training {words[Split.train]}, test {words[Split.test]}"
    names = words[Split.train], words[Split.validation], words[Split.test]
    return Splits(*names, trained_on_test, tuple(_deviations(env, ranges[Split.test])))


def _deviations(env: EnvConfig, test: range | None) -> Iterator[str]:
    """Yield what differs from LIBERO's starts and pictures, and from OpenVLA's evaluation, which others repeat."""
    own = env.section(LiberoConfig)
    if own.pictures is Pictures.fast:
        yield f"pictures have no reflections and shadows{'' if is_warp(env) else ', and coarser meshes'}"
    if is_warp(env):
        yield "physics in single precision, by MuJoCo Warp"
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


def own_limit(env: EnvConfig) -> int | None:
    """Return the control steps of an episode in OpenVLA's evaluation of the suite; None: it has another suite."""
    suite = env.section(LiberoConfig).suite
    return next((n for name, n in PUBLISHED_STEPS.items() if re.fullmatch(rf"{name}(_\D.*)?", suite)), None)


def _words(starts: range | None) -> str:
    return "sampled starts" if starts is None else f"published starts {starts.start} to {starts.stop - 1}"


def _overlap(one: range | None, other: range | None) -> bool:
    if one is None or other is None:
        return one is other
    return max(one.start, other.start) < min(one.stop, other.stop)


def perturbations(env: EnvConfig) -> dict[str, EnvConfig]:
    """Return LIBERO-PRO's suites of this suite by name; they must be exported as well."""
    own = env.section(LiberoConfig)
    return {
        name: replace(env, sections={**env.sections, "libero": replace(own, suite=f"{own.suite}_{name}")})
        for name in PRO_SUITES
    }


def device_memory(env: EnvConfig) -> SimulatorMemory:
    """Return the accelerator memory of an env worker: OpenGL's, or Warp's arrays and pictures as they are allocated.

    Envs share the textures and meshes of their scene, and take no memory of the card themselves.
    """
    if not is_warp(env):
        return SimulatorMemory(OPENGL_BYTES, 0, DRAWN_SCENE_BYTES, MAX_OPEN, num_scenes(env))
    pictures = len(env.cameras) * env.image_size**2 * WARP_PIXEL_BYTES
    return SimulatorMemory(WARP_FIRST_BYTES + WARP_ROW_BYTES + pictures, WARP_ROW_BYTES + pictures)


def host_memory(env: EnvConfig) -> SimulatorMemory:
    """Return the host memory of an env worker, whose envs share compiled scenes."""
    return SimulatorMemory(PROCESS_BYTES, ROW_BYTES, SCENE_BYTES, MAX_OPEN, num_scenes(env))


def num_scenes(env: EnvConfig) -> int:
    """Return how many scenes the tasks of a run have at most: all tasks of libero_goal share one."""
    own = env.section(LiberoConfig)
    return 1 if own.suite.startswith("libero_goal") else len(own.task_ids) or NUM_TASKS.get(own.suite, 10)


def conventions(env: EnvConfig) -> Conventions:
    """Return the names and formats of vla-eval's LIBEROBenchmark, and its parameters for this very world."""
    own = env.section(LiberoConfig)
    gripper = GRIPPER_OPEN_01 if own.has_openness else "binary_close_positive"
    actions = (
        Component("position", 3, "delta_xyz"),
        Component("rotation", 3, "axis_angle"),
        Component("gripper", 1, gripper),
    )
    # fixtures stand where LIBERO's seed puts them; the state has robosuite's axis-angle, also of more than half a turn
    same = {"seed": EVALUATION_SEED, "env_seed": EVALUATION_SEED, "quat_no_antipodal": True}
    same |= {"absolute_action": False, "num_steps_wait": own.settle_steps}
    return Conventions(actions, "eef_pos3_axisangle3_gripper2", {"robot0_eye_in_hand": "wrist"}, same)


SPEC = SimulatorSpec(
    "libero",
    "rlrun.envs.libero.libero_env:make_libero",
    WorldSpec(
        planned_spaces,
        cameras=CAMERAS,
        has_expert=lambda env: env.section(LiberoConfig).expert is not None,
        own_limit=own_limit,
    ),
    LiberoConfig,
    checks,
    ResourceSpec(
        memory=device_memory,
        host_memory=host_memory,
        time=control_time,
        node_checks="rlrun.doctor.libero_checks:INSPECTION",
    ),
    ProcessSpec(
        packages=("mujoco", "robosuite", "mujoco-warp", "warp-lang"),
        variables=(*opengl.VARIABLES, WARP_CACHE),
        environment=opengl.environment,
    ),
    EvaluationSpec(splits=splits, perturbations=perturbations),
    WireSpec(conventions),
)
