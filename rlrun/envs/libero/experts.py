"""Scripted experts of LIBERO's tasks, for demonstrations: what one sees, how one is loaded, and the shipped ones.

`env.libero.expert=module:FUNCTION` names a function expert(view) -> action, in the world's own terms: increments of the
hand as shares of the largest one, and the gripper (1 closes). It reads the simulator's state, and has no memory, so it
goes on from wherever a disturbance leaves the arm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np

from rlrun.config.sections import load_object
from rlrun.envs.libero.goals import Goal
from rlrun.envs.libero.tasks import ACTION_NAMES
from rlrun.system.errors import ExitStatus, RunError

# gripper
OPEN = -1.0
CLOSED = 1.0
KNOB = "flat_stove_1_button"  # joint
BESIDE_LEVER = np.array(
    [0.038, 0.012, 0.036]
)  # m from the knob's axis: the open fingers are on both sides of its lever
LEVER_TOLERANCE = 0.02  # m, along the lever
SWEEP = np.array([0.0, 0.1, 0.0])  # m: the knob turns counterclockwise, seen from above


@dataclass(frozen=True, eq=False)
class ExpertView:
    """The state of one row. Positions are those of the last physics step's beginning, as a goal reads them."""

    model: mujoco.MjModel
    data: mujoco.MjData
    hand: np.ndarray  # [3], position of the grip site, m
    step: np.ndarray  # [3], the largest increment of the hand in a control step, m
    goal: Goal  # of the row's task

    def body(self, name: str) -> np.ndarray:
        """Return the position [3] of a body, m. Raises KeyError if the scene has no such body."""
        return self.data.xpos[self.model.body(name).id]

    def axis_of(self, joint: str) -> np.ndarray:
        """Return the anchor [3] of a joint, m. Raises KeyError if the scene has no such joint."""
        return self.data.xanchor[self.model.joint(joint).id]

    def towards(self, point: np.ndarray, gripper: float, gain: float) -> np.ndarray:
        """Return the action [7] that moves the hand straight to `point` without turning it.

        gain: 1 asks for the whole distance. The hand follows an aim slowly, so more than 1 arrives sooner.
        """
        wanted = gain * (point - self.hand) / self.step
        action = np.zeros(len(ACTION_NAMES))
        action[:3] = wanted / max(1.0, np.abs(wanted).max())
        action[-1] = gripper
        return action


class Expert:
    """The function that `env.libero.expert` names."""

    def __init__(self, location: str):
        """Import `location`, "module:FUNCTION". Raises RunError if that fails."""
        self._location = location
        try:
            self._choose: Callable[[ExpertView], np.ndarray] = load_object(location)
        except (ImportError, AttributeError) as error:
            raise self._refused("cannot be imported", f"{type(error).__name__}: {error}") from error

    def action(self, view: ExpertView) -> np.ndarray:
        """Return the next control step, float32 [7] in -1..1. Raises RunError if the function returns no action."""
        try:
            action = np.asarray(self._choose(view), np.float32)
        except KeyError as error:  # MuJoCo's, for a name that the scene does not have
            raise self._refused("is for another task", str(error)) from error
        if action.shape != (len(ACTION_NAMES),) or not np.isfinite(action).all():
            raise self._refused("returns no action", f"It returned {action!r}.")
        return np.clip(action, -1.0, 1.0)

    def _refused(self, what: str, cause: str) -> RunError:
        return RunError(
            f"The expert {self._location} {what}.",
            key="env.libero.expert",
            value=self._location,
            cause=cause,
            remedy="Name module:FUNCTION of a function expert(rlrun.envs.libero.experts.ExpertView) that returns seven "
            "numbers, and the tasks that it solves in env.libero.task_ids.",
            exit_status=ExitStatus.bad_config,
        )


def turn_on_the_stove(view: ExpertView) -> np.ndarray:
    """Solve libero_goal:7: put the open fingers over the knob's lever, and push its end to the side."""
    point = view.axis_of(KNOB) + BESIDE_LEVER
    ahead = view.hand - point
    is_down = ahead[2] < 0.012 and ahead[1] > -LEVER_TOLERANCE
    if is_down and abs(ahead[0]) < LEVER_TOLERANCE:
        return view.towards(point + SWEEP, OPEN, gain=1.5)
    off = abs(ahead[0]) if is_down else float(np.hypot(*ahead[:2]))
    height = float(np.clip(2.0 * (off - 0.015), -0.01, 0.08))  # from afar it comes from above, so that it hits nothing
    return view.towards(point + [0.0, 0.0, height], OPEN, gain=2.0)
