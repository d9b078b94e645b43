"""Spec and settings of LIBERO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import NOT_NEGATIVE, Range, Section, bounded, named
from rlrun.config.simulator_spec import DeviceMemory, PlannedSpaces, SimulatorSpec, SimulatorTime, Splits
from rlrun.data.seeds import Split
from rlrun.envs import opengl
from rlrun.system.errors import RunError

SAMPLED = "sampled"
NUM_PUBLISHED = 50  # starts of each task
PRO_SUITES = ("lan", "object", "swap", "task", "env")  # suffixes of LIBERO-PRO's suites
CAMERAS = ("agentview", "robot0_eye_in_hand")


class Backend(Enum):
    native = "native"  # MuJoCo with rlrun's controller and predicates, from scenes exported once
    robosuite = "robosuite"  # LIBERO's own code, in an interpreter that has it


class Pictures(Enum):
    exact = "exact"  # as LIBERO draws them
    fast = "fast"  # without reflections and shadows: for policies that are trained on such pictures only


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
    pictures: Pictures = Pictures.exact
    expert: str | None = None  # module:FUNCTION of expert(view) -> action, for rlrun.demos; None: no expert
    has_openness: bool = False  # True: gripper 1 open, 0 closed, as OpenVLA's checkpoints; False: -1 open, 1 closed


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return the sizes: hand position, axis-angle and two fingers; six increments of the hand and the gripper."""
    return PlannedSpaces(len(env.cameras), 8, 7, tuple(env.cameras), float(env.action_hz))


def control_time(env: EnvConfig) -> SimulatorTime:
    """Return the seconds of a control step by benchmarks/libero.py; a picture's are assumed, of a card's EGL."""
    if env.section(LiberoConfig).backend is Backend.robosuite:
        return SimulatorTime(env_step_s=0.04, picture_s=0.01)
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
    return {split: start_range(getattr(own, f"{split.value}_starts")) for split in Split}


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for a range of starts that is none, and for an expert that would have no effect."""
    own = config.env.section(LiberoConfig)
    for split in Split:
        key = f"{split.value}_starts"
        try:
            start_range(getattr(own, key))
        except ValueError as error:
            yield RunError(
                "The range of starts cannot be read.",
                key=f"env.libero.{key}",
                value=getattr(own, key),
                cause=str(error),
                remedy='Write "0:40" for the first forty published starts of each task, quoted in YAML, or sampled.',
            )
    if own.expert is not None and own.backend is Backend.robosuite:
        yield RunError(
            "'env.libero.expert' would have no effect.",
            key="env.libero.expert",
            value=own.expert,
            cause="env.libero.backend=robosuite has no expert: experts read the state of rlrun's own world.",
            remedy="Set env.libero.backend=native, or drop it.",
        )


def splits(env: EnvConfig) -> Splits:
    """Return where episodes of each split begin, and what differs from LIBERO's protocol."""
    own = env.section(LiberoConfig)
    ranges = start_ranges(own)
    words = {split: _words(one) for split, one in ranges.items()}
    trained_on_test = ""
    if _overlap(ranges[Split.train], ranges[Split.test]):
        trained_on_test = f"Trained on test starts: training {words[Split.train]}, test {words[Split.test]}"
    deviations = []
    if own.pictures is Pictures.fast:
        deviations.append("pictures have no reflections and shadows")
    if ranges[Split.test] != range(NUM_PUBLISHED):
        deviations.append(f"of each task's {NUM_PUBLISHED} published starts, the test takes {words[Split.test]}")
    if own.task_ids:
        deviations.append(f"of the suite {own.suite}, tasks {own.task_ids}")
    names = words[Split.train], words[Split.validation], words[Split.test]
    return Splits(*names, trained_on_test, tuple(deviations))


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


SPEC = SimulatorSpec(
    "libero",
    "rlrun.envs.libero.libero_env:make_libero",
    planned_spaces,
    LiberoConfig,
    memory=DeviceMemory(500_000_000, 200_000_000),
    host_bytes=2_500_000_000,  # three scenes, drawn by a card
    time=control_time,
    cameras=CAMERAS,
    packages=("mujoco", "robosuite"),
    splits=splits,
    perturbations=perturbations,
    has_expert=lambda env: env.section(LiberoConfig).expert is not None,
    checks=checks,
    variables=opengl.VARIABLES,
    environment=opengl.environment,
    node_checks="rlrun.doctor.simulator_checks:MUJOCO_RENDERER",
)
