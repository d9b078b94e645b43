"""What all worlds of LIBERO's tasks share: names, limits, the choice of tasks and starts."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import mujoco
import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.edges.spaces import Spaces
from rlrun.edges.starts import split_of
from rlrun.envs.libero.spec import SAMPLED, SuiteConfig, start_range, start_texts
from rlrun.system.errors import ExitStatus, RunError

ACTION_NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")  # increments of the hand; gripper: 1 closes
NUM_PROPRIO = 8  # hand position (m), its axis-angle (rad), two fingers (m)


def check_renderer() -> None:
    """Refuse MuJoCo 3.17.0: it returns uninitialized memory as pictures once an earlier renderer has been freed."""
    if mujoco.__version__ == "3.17.0":
        raise RunError(
            "Pictures of MuJoCo 3.17.0 are not reliable: some show memory that was never drawn into.",
            key="placement.nodes.<group>.python",
            value=sys.executable,
            remedy=f"{sys.executable} -m pip install mujoco==3.3.7",
            exit_status=ExitStatus.bad_config,
        )


def chosen_tasks(config: EnvConfig, num_tasks: int) -> tuple[int, ...]:
    """Return the tasks of `task_ids`, or all of the suite. Raises RunError for one that it does not have."""
    settings = config.section(SuiteConfig)
    unknown = [task for task in settings.task_ids if not 0 <= task < num_tasks]
    if unknown:
        raise RunError(
            f"The suite {settings.suite} has no task {unknown[0]}.",
            key=settings.key("task_ids"),
            value=list(settings.task_ids),
            remedy=f"Take some of 0 to {num_tasks - 1}.",
            exit_status=ExitStatus.bad_config,
        )
    return tuple(settings.task_ids) or tuple(range(num_tasks))


@dataclass(frozen=True)
class StartChoice:
    """The start of an episode. Example: StartChoice(is_sampled=False, number=17), the published start 17."""

    is_sampled: bool
    number: int


def start_of(seed: int, num_tasks: int, num_published: int, num_sampled: int, settings: SuiteConfig) -> StartChoice:
    """Return the start of an episode by its reset seed, from the starts of its split; seeds choose tasks first.

    num_tasks: of the world; num_published, num_sampled: of the task. Raises RunError if the task has no such starts.
    """
    split = split_of(seed)
    key = settings.key(f"{split.value}_starts")
    text = start_texts(settings)[split]
    wanted = start_range(text)
    if wanted is None and num_sampled == 0:
        raise RunError(
            f"No starts were sampled for a task of the suite {settings.suite}.",
            key=key,
            value=SAMPLED,
            remedy="Export the suite again, without --sampled 0 (docs/libero.md). Or take published starts, as "
            f"{key}='\"0:{num_published}\"'.",
            exit_status=ExitStatus.bad_config,
        )
    if wanted is not None and wanted.stop > num_published:
        raise RunError(
            f"A task of the suite {settings.suite} has {num_published} published starts.",
            key=key,
            value=text,
            remedy=f"Take a range within 0:{num_published}.",
            exit_status=ExitStatus.bad_config,
        )
    at = seed // num_tasks
    return StartChoice(True, at % num_sampled) if wanted is None else StartChoice(False, wanted[at % len(wanted)])


def spaces_of(config: EnvConfig) -> Spaces:
    """Return the observation and action spaces of LIBERO's robot."""
    own = config.section(SuiteConfig)
    high = (1.0,) * len(ACTION_NAMES)
    low = (*[-1.0] * (len(ACTION_NAMES) - 1), 0.0 if own.has_openness else -1.0)
    return Spaces(
        num_actions=len(ACTION_NAMES),
        num_choices=None,
        action_low=low,
        action_high=high,
        num_proprio=NUM_PROPRIO,
        num_images=len(own.cameras),
        cameras=tuple(own.cameras),
        action_names=ACTION_NAMES,
        control_hz=float(config.action_hz),
    )


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Return the axis-angle [3] of a unit quaternion x, y, z, w; zeros for a negligible rotation."""
    x = quaternion[:3]
    w = np.clip(quaternion[3], -1.0, 1.0)
    sine = np.sqrt(1.0 - w * w)
    return np.zeros(3) if sine < 1e-8 else x / sine * 2.0 * np.arccos(w)
