"""One environment of Gymnasium's registry, as a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing

from rlrun.config.schema import EnvConfig
from rlrun.data.messages import Spaces
from rlrun.envs.gymnasium.actions import Actions
from rlrun.envs.gymnasium.observations import ObservationReader
from rlrun.envs.gymnasium.settings import GymnasiumConfig
from rlrun.envs.pictures import resized
from rlrun.envs.rows import SingleEnv, Step
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

SUCCESS_KEYS = ("success", "is_success")  # keys in Meta-World, and in Gymnasium-Robotics and LeRobot
INSTRUCTION_NAMES = ("task_description", "task")  # attributes of LeRobot's environments


RENDERED = spaces.Box(0, 255, (1, 1, 3), np.uint8)  # of any size


class GymnasiumEnv(SingleEnv):
    """One environment; its time limit is `env.max_control_steps`, whatever limit is registered.

    make: makes the environment, in place of `env.gymnasium.id`.
    """

    def __init__(self, config: EnvConfig, make: Callable[[], gymnasium.Env] | None = None):
        self._wanted, self._image_size = config.section(GymnasiumConfig), config.image_size
        self._env = self._registered() if make is None else make()
        self._actions = Actions(self._env.action_space, self._wanted.id)
        self._is_rendered = self._wanted.is_observed_as_pixels
        space = RENDERED if self._is_rendered else self._env.observation_space
        self._reader = ObservationReader(space, self._wanted, self._image_size)
        self._success_return = self._wanted.success_return
        if self._success_return is None and self._env.spec is not None:
            self._success_return = self._env.spec.reward_threshold
        self._observation: Any = None
        self._return = 0.0

    def _registered(self) -> gymnasium.Env:
        wanted = self._wanted
        try:
            made = gymnasium.make(
                wanted.id,
                max_episode_steps=-1,  # no time limit: the rows count the steps
                disable_env_checker=True,  # it warns at every step, about matters that rlrun cannot change
                render_mode="rgb_array",
                **wanted.kwargs,
            )
            return made.env if isinstance(made, OrderEnforcing) else made  # rows are never stepped before a reset
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise RunError(
                f"Gymnasium cannot make {wanted.id}.",
                key="env.gymnasium.id",
                value=wanted.id,
                cause=f"{type(error).__name__}: {error}",
                remedy="Check the id, env.gymnasium.kwargs, and that its package is installed; 'module:Name-v0' "
                "imports the module first.",
                exit_status=ExitStatus.bad_config,
                row="gymnasium-id",
            ) from error

    def spaces(self) -> Spaces:
        """What a policy for this environment sees and does."""
        found = self._actions.spaces(self._reader.num_proprio, self._reader.num_images)
        hz = self._env.metadata.get("render_fps")  # by convention the rate of control steps; nothing depends on it
        return dataclasses.replace(
            found,
            observed=self._reader.guess,
            cameras=self._reader.cameras,
            control_hz=float(hz) if isinstance(hz, (int, float)) and hz > 0 else None,
            is_hz_nominal=True,
        )

    @property
    def instruction(self) -> str:
        seen = None if self._observation is None else self._reader.instruction(self._observation)
        return self._wanted.instruction or seen or task_of(self._env) or self._wanted.id

    def start(self, seed: int) -> None:
        self._observation, _ = self._env.reset(seed=seed)
        self._return = 0.0

    def step(self, action: np.ndarray) -> Step:
        self._observation, reward, terminated, truncated, info = self._env.step(self._actions.native(action))
        reward = float(reward)
        self._return += reward
        return Step(reward, bool(terminated), bool(truncated), self._is_success(info))

    def _is_success(self, info: dict) -> bool:
        for key in SUCCESS_KEYS:
            if key in info:
                return bool(info[key])
        return self._success_return is not None and self._return >= self._success_return

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        seen = np.asarray(self._env.render()) if self._is_rendered else self._observation
        return self._reader.images(seen), self._reader.proprio(seen)

    def render(self, height: int, width: int) -> np.ndarray:
        return resized(np.asarray(self._env.render()), height, width)

    def close(self) -> None:
        self._env.close()


def task_of(env: gymnasium.Env | None) -> str:
    """Return the instruction that an environment has as an attribute; "" if it has none."""
    inner = None if env is None else env.unwrapped
    found = (getattr(inner, name, None) for name in INSTRUCTION_NAMES)
    return next((text for text in found if isinstance(text, str)), "")
