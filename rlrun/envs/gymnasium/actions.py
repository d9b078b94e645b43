"""Converts a policy's actions, float32 [A], to those of a Gymnasium environment, and an expert's to a policy's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.config.sections import load_object
from rlrun.edges.seeds import simulator_seed
from rlrun.edges.spaces import Spaces
from rlrun.envs.gymnasium.spec import GymnasiumConfig, SuccessRule
from rlrun.system.errors import ExitStatus, RunError

log = logging.getLogger(__name__)

NO_EXPERT = (
    "this world has no expert: name one in env.gymnasium.expert, give demonstrations in demos.path, or take a policy "
    "that begins from scratch (policy.kind=mlp or cnn)"
)
MAX_CHOICES = 256  # choices are stored as uint8 tokens
MAX_LIMIT = 1e6  # larger limits of actions mean that there are none: float32's largest number is a usual one
SILENT_EPISODES = 3  # without a word on success, after which demonstrations are refused
SUCCESS_KEYS = ("success", "is_success")  # keys in Meta-World, and in Gymnasium-Robotics and LeRobot


class Actions:
    """Actions of one space, Box or Discrete. Raises RunError for other spaces."""

    def __init__(self, space: spaces.Space, name: str):
        self._space = space
        self._name = name
        self._first_choice = int(space.start) if isinstance(space, spaces.Discrete) else None
        self.is_box = isinstance(space, spaces.Box)
        self._is_native = isinstance(space, spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1
        is_known = self.is_box or (isinstance(space, spaces.Discrete) and space.n <= MAX_CHOICES)
        if not is_known:
            raise RunError(
                f"No policy has the actions of {name}.",
                key="env.gymnasium.id",
                value=name,
                cause=f"They are {space}; rlrun knows Box, and Discrete of at most {MAX_CHOICES}.",
                remedy="Register a variant with a wrapper that turns them into one of these.",
                exit_status=ExitStatus.bad_config,
            )

    def spaces(self, num_proprio: int, num_images: int) -> Spaces:
        """Return the spaces of a policy for this environment."""
        space: Any = self._space
        if self._first_choice is not None:
            limits = (0.0,), (float(space.n - 1),)
            return Spaces(1, int(space.n), *limits, num_proprio, num_images, action_names=("action/0",))
        # the limits of an unbounded Box of whole numbers are those of its type, which say nothing of its actions
        low = np.where(space.bounded_below, space.low, -np.inf).reshape(-1)
        high = np.where(space.bounded_above, space.high, np.inf).reshape(-1)
        is_huge = np.isfinite(low) & (low < -MAX_LIMIT) | np.isfinite(high) & (high > MAX_LIMIT)
        if is_huge.any():
            worst = int(np.flatnonzero(is_huge)[0])
            log.warning(
                "action_space of %s: limits beyond %g, such as %g to %g of action %d, count as no limits",
                *(self._name, MAX_LIMIT, low[worst], high[worst], worst),
            )
        low = np.where(low < -MAX_LIMIT, -np.inf, low).tolist()
        high = np.where(high > MAX_LIMIT, np.inf, high).tolist()
        names = tuple(f"action/{i}" for i in range(len(low)))
        return Spaces(len(low), None, tuple(low), tuple(high), num_proprio, num_images, action_names=names)

    def native(self, action: np.ndarray) -> Any:
        """Return the action for env.step: within its space, in its type; whole numbers are the nearest ones."""
        if self._is_native:
            return action
        if self._first_choice is not None:
            return self._first_choice + int(np.rint(action[0]))
        space: Any = self._space
        wanted = action.reshape(space.shape).astype(np.float64)  # float32 may round a limit to a number beyond it
        if space.dtype.kind != "f":
            wanted = np.rint(wanted)
        if space.dtype == np.bool_:
            return wanted > 0
        return np.clip(wanted, space.low.astype(np.float64), space.high.astype(np.float64)).astype(space.dtype)

    def of_policy(self, native: Any) -> np.ndarray:
        """Return an action of env.step as that of a policy, float32 [A]. Raises ValueError if it is none."""
        numbers = np.asarray(native, np.float32).reshape(-1) - np.float32(self._first_choice or 0)
        expected = int(np.prod(self._space.shape or ()))
        if len(numbers) != expected or not np.isfinite(numbers).all():
            raise ValueError(f"{native!r} is no action of {self._space}")
        return numbers


class Expert:
    """A function expert(env, observation) -> action, in the terms of the environment itself."""

    def __init__(self, location: str, actions: Actions):
        """Import `location`, "module:FUNCTION". Raises RunError if that fails."""
        self._location = location
        self._actions = actions
        try:
            self._choose: Callable[[Any, Any], Any] = load_object(location)
        except (ImportError, AttributeError) as error:
            raise self._refused("cannot be imported", f"{type(error).__name__}: {error}") from error

    @classmethod
    def of(cls, location: str | None, actions: Actions) -> Expert | None:
        """Return the expert of `env.gymnasium.expert`; None: there is none."""
        return None if location is None else cls(location, actions)

    def action(self, env: Any, observation: Any) -> np.ndarray:
        """Return the expert's action as a policy's, float32 [A]. Raises RunError if it is no action."""
        chosen = self._choose(env, observation)
        try:
            return self._actions.of_policy(chosen)
        except (TypeError, ValueError) as error:
            raise self._refused("returns no action", str(error)) from error

    def _refused(self, what: str, cause: str) -> RunError:
        return RunError(
            f"The expert {self._location} {what}.",
            key="env.gymnasium.expert",
            value=self._location,
            cause=cause,
            remedy="Name module:FUNCTION of a function expert(env, observation) that returns an action for env.step.",
            exit_status=ExitStatus.bad_config,
        )


def seed_of_reset(number: int, settings: GymnasiumConfig) -> int:
    """Return the argument of `reset(seed=…)` for the reset seed `number` of an episode."""
    return number if settings.has_whole_seeds else simulator_seed(number)


def first_observation(reset: Callable[..., Any], seed: int, name: str) -> Any:
    """Call `reset(seed=…)` of the environment `name`. Returns the observation. Raises RunError for another answer."""
    try:
        returned = reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" not in str(error):
            raise
        raise _not_gymnasium(name, "reset() takes no seed", str(error)) from error
    return observation_of(returned, name)


def observation_of(returned: Any, name: str) -> Any:
    """Return the observation that `reset` returned. Raises RunError for another answer."""
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise _not_gymnasium(name, "reset() does not return (observation, info)", f"It returns {_described(returned)}.")
    return returned[0]


def step_results(returned: Any, name: str) -> tuple[Any, float, bool, bool, Mapping]:
    """Return the five results of `step` of the environment `name`. Raises RunError for another answer."""
    observation, reward, terminated, truncated, info = _five(returned, name)
    ends = flag(terminated, "terminated", name), flag(truncated, "truncated", name)
    return observation, number(reward, "reward", name), *ends, info


def vector_results(returned: Any, rows: int, name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping]:
    """Return the five results of `step` of a vector environment: rewards [B], flags bool [B]. Raises as the above."""
    observations, rewards, terminated, truncated, info = _five(returned, name)
    rewards = _of_rows(rewards, "reward", "biuf", rows, name)
    terminated = _of_rows(terminated, "terminated", "bui", rows, name).astype(bool)
    truncated = _of_rows(truncated, "truncated", "bui", rows, name).astype(bool)
    return observations, rewards, terminated, truncated, info


def _five(returned: Any, name: str) -> tuple[Any, Any, Any, Any, Mapping]:
    if not isinstance(returned, tuple) or len(returned) != 5 or not isinstance(returned[4], Mapping):
        cause = f"It returns {_described(returned)}."
        if isinstance(returned, tuple) and len(returned) == 5:
            cause = f"Its info is {_described(returned[4])}."
        what = "step() does not return (observation, reward, terminated, truncated, info)"
        raise _not_gymnasium(name, what, cause)
    return returned


def _of_rows(values: Any, what: str, kinds: str, rows: int, name: str) -> np.ndarray:
    """Return one value for each row, [B]. Raises RunError for other numbers of values, and for other types."""
    array = np.empty(0)
    with suppress(ValueError):  # rows of several lengths
        array = np.asarray(values)
    if array.shape not in ((rows,), (rows, 1)) or array.dtype.kind not in kinds:
        shape = f"of shape {list(array.shape)}, {array.dtype}" if array.size else _described(values)
        raise _not_gymnasium(name, f"its {what} is not one for each of {rows} environments", f"It is {shape}.")
    return array.reshape(rows)


def flag(value: Any, what: str, name: str) -> bool:
    """Return a flag, which may be an array of one. Raises RunError for anything else."""
    if type(value) is bool:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "bui":
        raise _not_gymnasium(name, f"its flag {what} is no single one", f"It is {_described(value)}.")
    return bool(array.item())


def number(value: Any, what: str, name: str) -> float:
    """Return a number, which may be an array of one. Raises RunError for anything else."""
    if type(value) is float:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise _not_gymnasium(name, f"its {what} is no number", f"It is {_described(value)}.")
    return float(array.item())


def success_of(info: Mapping, name: str) -> bool | None:
    """Return the success in an info; None: it has none. Raises RunError for a value that is neither true nor false."""
    for key in SUCCESS_KEYS:
        if info.get(key) is not None:
            said = number(info[key], f"'{key}' in info", name)
            if np.isnan(said):
                raise _not_gymnasium(name, f"its '{key}' in info is no number", "It is NaN.")
            return bool(said)
    return None


class Success:
    """Success of one episode at a time, by the info of its last or of any step, or by its return."""

    def __init__(self, settings: GymnasiumConfig, made: Any, max_steps: int):
        """made: the spec of the environment; None: it has none. max_steps: the time limit of an episode."""
        self._name = settings.id
        self._is_last = settings.success is SuccessRule.last
        self._max_steps = max_steps
        self._needed = settings.success_return
        self._length = None
        if self._needed is None and made is not None:
            self._needed = made.reward_threshold
            self._length = gymnasium.registry.get(made.id, made).max_episode_steps  # `made` has no limit any more
        self._return = 0.0
        self._num_steps = 0
        self._was_said = self._has_spoken = self._is_told = False
        self._num_silent = 0

    def start(self) -> None:
        """Begin an episode."""
        if self._num_steps:
            self._num_silent = 0 if self._has_spoken or self._needed is not None else self._num_silent + 1
        self._return = 0.0
        self._num_steps = 0
        self._was_said = False

    def require_word(self) -> None:
        """Raise RunError if several episodes have ended without a word on success, as an expert's must have."""
        if self._num_silent < SILENT_EPISODES:
            return
        raise RunError(
            f"{self._name} says nothing of success, so that no episode of its expert is a demonstration.",
            key="env.gymnasium.success_return",
            value=None,
            cause=f"The info of {self._num_silent} episodes had none of {', '.join(SUCCESS_KEYS)}, and its "
            "registration has no threshold.",
            remedy="Set env.gymnasium.success_return to the return from which an episode counts as solved.",
            exit_status=ExitStatus.bad_input,
        )

    def after(self, reward: float, info: Mapping, is_terminated: bool, is_cut: bool) -> bool:
        """Return the success so far, after a control step. is_cut: the environment has truncated the episode."""
        self._num_steps += 1
        if self._length is None or self._num_steps <= self._length:
            self._return += reward
        said = success_of(info, self._name)
        self._has_spoken |= said is not None
        if said is None and not self._was_said:
            return self._is_return_enough(is_terminated, is_cut or self._num_steps >= self._max_steps)
        self._was_said = bool(said) or (self._was_said and not self._is_last)
        return self._was_said

    def _is_return_enough(self, is_terminated: bool, is_cut: bool) -> bool:
        """Return whether the return solves the episode. A registered threshold holds for the registered length."""
        if self._needed is None or self._return < self._needed:
            return False
        if self._length is None or self._num_steps >= self._length or is_terminated:
            return True
        if is_cut and not self._is_told:
            self._is_told = True
            log.warning(
                "%s: a return of %g after %d control steps is no success: the registered threshold, %g, is that of "
                "episodes of %d; set env.max_control_steps=%d, or env.gymnasium.success_return",
                *(self._name, self._return, self._num_steps, self._needed, self._length, self._length),
            )
        return False


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
