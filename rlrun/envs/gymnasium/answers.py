"""Reads what an environment's `reset` and `step` return: what is not as Gymnasium defines it is named; success."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlrun.envs.gymnasium.settings import GymnasiumConfig, SuccessRule
from rlrun.system.errors import ExitStatus, RunError

SUCCESS_KEYS = ("success", "is_success")  # keys in Meta-World, and in Gymnasium-Robotics and LeRobot


def first_observation(reset: Callable[..., Any], seed: int, name: str) -> Any:
    """Call `reset(seed=…)` of the environment `name`. Returns the observation. Raises RunError for another answer."""
    try:
        returned = reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" not in str(error):
            raise
        raise _not_gymnasium(name, "reset() takes no seed", str(error)) from error
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise _not_gymnasium(name, "reset() does not return (observation, info)", f"It returns {_described(returned)}.")
    return returned[0]


def step_results(returned: Any, name: str) -> tuple[Any, float, bool, bool, Mapping]:
    """Return the five results of `step` of the environment `name`. Raises RunError for another answer."""
    if not isinstance(returned, tuple) or len(returned) != 5 or not isinstance(returned[4], Mapping):
        what = "step() does not return (observation, reward, terminated, truncated, info)"
        raise _not_gymnasium(name, what, f"It returns {_described(returned)}.")
    observation, reward, terminated, truncated, info = returned
    return observation, number(reward, "reward", name), bool(terminated), bool(truncated), info


def number(value: Any, what: str, name: str) -> float:
    """Return a number, which may be an array of one. Raises RunError for anything else."""
    if type(value) is float:
        return value
    found = np.asarray(value)
    if found.size != 1 or found.dtype.kind not in "biuf":
        raise _not_gymnasium(name, f"its {what} is no number", f"It is {_described(value)}.")
    return float(found.item())


def success_of(info: Mapping, name: str) -> bool | None:
    """Return the success in an info. None: it says nothing. Raises RunError for what is neither true nor false."""
    for key in SUCCESS_KEYS:
        if info.get(key) is not None:
            said = number(info[key], f"'{key}' in info", name)
            if np.isnan(said):
                raise _not_gymnasium(name, f"its '{key}' in info is no number", "It is NaN.")
            return bool(said)
    return None


class Success:
    """The success of one episode at a time: what the environment says at the last or at any step, or a return."""

    def __init__(self, own: GymnasiumConfig, registered: Any):
        """registered: the spec of the environment in Gymnasium's registry; None: it has none."""
        self._name, self._is_last = own.id, own.success is SuccessRule.last
        self._needed = own.success_return
        if self._needed is None and registered is not None:
            self._needed = registered.reward_threshold
        self._return = 0.0
        self._was_said = False

    def start(self) -> None:
        """Begin an episode."""
        self._return, self._was_said = 0.0, False

    def after(self, reward: float, info: Mapping) -> bool:
        """Return the success so far, after a control step."""
        self._return += reward
        said = success_of(info, self._name)
        if said is None and not self._was_said:
            return self._needed is not None and self._return >= self._needed
        self._was_said = bool(said) or (self._was_said and not self._is_last)
        return self._was_said


def _described(value: Any) -> str:
    """Describe an answer in a few words. Example: "a tuple of 4"."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} ({value.dtype})"
    return f"{type(value).__name__} {value!r}"[:80]


def _not_gymnasium(name: str, what: str, cause: str) -> RunError:
    return RunError(
        f"{name} is not as Gymnasium defines environments: {what}.",
        key="env.gymnasium.id",
        value=name,
        cause=cause,
        remedy="Repair the environment, or wrap it; gymnasium.utils.env_checker.check_env names all such faults.",
        exit_status=ExitStatus.bad_input,
    )
