"""Any environment of Gymnasium's registry.

A vector observation, flattened, is the proprioception; a picture (uint8 [H, W, 3]), or with
`env.gymnasium.is_observed_as_pixels` what the environment renders, is the one camera image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing

from rlrun.config.schema import EnvConfig
from rlrun.data.messages import Spaces
from rlrun.envs.pictures import draw_without_display, resized
from rlrun.envs.rows import RowsEnv, SingleEnv, Step
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

MAX_CHOICES = 256  # a choice travels as a uint8 token
SUCCESS_KEYS = ("success", "is_success")  # of Meta-World, of Gymnasium-Robotics


def make_gymnasium(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """`num_envs` rows of `env.gymnasium.id`. Raises RunError where it cannot be made or has other actions."""
    draw_without_display(config.renderer)
    probe = GymnasiumEnv(config)
    found = probe.spaces()
    probe.close()
    names = [f"action/{i}" for i in range(found.num_actions)]
    limit = config.max_control_steps
    return RowsEnv(lambda: GymnasiumEnv(config), num_envs, found, names, config.image_size, limit, progress)


class GymnasiumEnv(SingleEnv):
    """One environment of the registry; its time limit is `env.max_control_steps`, whatever was registered."""

    def __init__(self, config: EnvConfig):
        self._wanted, self._image_size = config.gymnasium, config.image_size
        self._env = self._make()
        self._space, self._actions = self._env.observation_space, self._env.action_space
        self._first_choice = int(self._actions.start) if isinstance(self._actions, spaces.Discrete) else None
        self._is_native = (
            self._actions.dtype == np.float32 and len(self._actions.shape or ()) == 1
        )  # as the rows' actions
        self._has_image = self._wanted.is_observed_as_pixels or _is_image(self._space)
        self._is_vector = isinstance(self._space, spaces.Box) and len(self._space.shape) == 1 and not self._has_image
        self._no_images = np.zeros((0, self._image_size, self._image_size, 3), np.uint8)
        self._success_return = self._wanted.success_return
        if self._success_return is None and self._env.spec is not None:
            self._success_return = self._env.spec.reward_threshold
        self._observation: Any = None
        self._return = 0.0

    def _make(self) -> gymnasium.Env:
        wanted = self._wanted
        try:
            made = gymnasium.make(
                wanted.id,
                max_episode_steps=-1,  # none: the rows count
                disable_env_checker=True,  # it warns of what is not ours to change, at every step
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
            ) from error

    def spaces(self) -> Spaces:
        """What a policy for it sees and does. Raises RunError for actions that no policy here has."""
        num_proprio = 0 if self._has_image else spaces.flatdim(self._space)
        actions = self._actions
        if isinstance(actions, spaces.Box):
            low, high = (tuple(limit.reshape(-1).tolist()) for limit in (actions.low, actions.high))
            return Spaces(len(low), None, low, high, num_proprio, int(self._has_image))
        if isinstance(actions, spaces.Discrete) and actions.n <= MAX_CHOICES:
            return Spaces(1, int(actions.n), (0.0,), (float(actions.n - 1),), num_proprio, int(self._has_image))
        raise RunError(
            f"No policy has the actions of {self._wanted.id}.",
            key="env.gymnasium.id",
            value=self._wanted.id,
            cause=f"They are {actions}; rlrun knows Box, and Discrete of at most {MAX_CHOICES}.",
            remedy="Register a variant with a wrapper that turns them into one of these.",
            exit_status=ExitStatus.bad_config,
        )

    @property
    def instruction(self) -> str:
        return self._wanted.id

    def start(self, seed: int) -> None:
        self._observation, _ = self._env.reset(seed=seed)
        self._return = 0.0

    def step(self, action: np.ndarray) -> Step:
        self._observation, reward, terminated, truncated, info = self._env.step(self._native(action))
        reward = float(reward)
        self._return += reward
        return Step(reward, bool(terminated), bool(truncated), self._is_success(info))

    def _native(self, action: np.ndarray) -> np.ndarray | int:
        if self._is_native:
            return action
        if self._first_choice is not None:
            return self._first_choice + int(np.rint(action[0]))
        return action.reshape(self._actions.shape).astype(self._actions.dtype, copy=False)

    def _is_success(self, info: dict) -> bool:
        for key in SUCCESS_KEYS:
            if key in info:
                return bool(info[key])
        return self._success_return is not None and self._return >= self._success_return

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        if self._is_vector:
            return self._no_images, self._observation  # rows take it as float32
        if not self._has_image:
            return self._no_images, np.asarray(spaces.flatten(self._space, self._observation), np.float32)
        picture = self._env.render() if self._wanted.is_observed_as_pixels else self._observation
        return resized(np.asarray(picture), self._image_size, self._image_size)[None], np.zeros(0, np.float32)

    def render(self, height: int, width: int) -> np.ndarray:
        return resized(np.asarray(self._env.render()), height, width)

    def close(self) -> None:
        self._env.close()


def _is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and space.shape[2:] == (3,)
