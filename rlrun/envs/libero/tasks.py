"""What both backends of LIBERO share: names, limits, the choice of tasks. robosuite's runs in another interpreter."""

from __future__ import annotations

import sys

import mujoco
import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.envs.libero.spec import LiberoConfig, start_range
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
    """Return the tasks of `env.libero.task_ids`, or all of the suite. Raises RunError for one that it does not have."""
    settings = config.section(LiberoConfig)
    unknown = [task for task in settings.task_ids if not 0 <= task < num_tasks]
    if unknown:
        raise RunError(
            f"The suite {settings.suite} has no task {unknown[0]}.",
            key="env.libero.task_ids",
            value=list(settings.task_ids),
            remedy=f"Take some of 0 to {num_tasks - 1}.",
            exit_status=ExitStatus.bad_config,
        )
    return tuple(settings.task_ids) or tuple(range(num_tasks))


def start_of(seed: int, num_tasks: int, num_starts: int, settings: LiberoConfig) -> int:
    """Return which published start of a task an episode with reset seed `seed` has; seeds choose tasks first.

    num_tasks: of the world; num_starts: of the task. Raises RunError if `env.libero.starts` names others.
    """
    first, end = (0, num_starts) if settings.starts is None else start_range(settings.starts)
    if end > num_starts:
        raise RunError(
            f"A task of the suite {settings.suite} has {num_starts} published starts.",
            key="env.libero.starts",
            value=settings.starts,
            remedy=f"Take a range within 0:{num_starts}.",
            exit_status=ExitStatus.bad_config,
        )
    return first + seed // num_tasks % (end - first)


def action_limits(settings: LiberoConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest action, float32 [7]."""
    high = np.ones(len(ACTION_NAMES), np.float32)
    low = -high
    low[-1] = 0.0 if settings.has_openness else -1.0
    return low, high


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Return the axis-angle [3] of a unit quaternion x, y, z, w; zeros for a negligible rotation."""
    x, w = quaternion[:3], np.clip(quaternion[3], -1.0, 1.0)
    sine = np.sqrt(1.0 - w * w)
    return np.zeros(3) if sine < 1e-8 else x / sine * 2.0 * np.arccos(w)
