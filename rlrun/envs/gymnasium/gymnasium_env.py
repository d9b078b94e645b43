"""One environment of Gymnasium's registry, as a row."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.config.schema import EnvConfig
from rlrun.edges.spaces import Spaces
from rlrun.envs.gymnasium.actions import (
    NO_EXPERT,
    Actions,
    Expert,
    Success,
    first_observation,
    seed_of_reset,
    step_results,
)
from rlrun.envs.gymnasium.observations import SMALLEST_GRID, ObservationReader
from rlrun.envs.gymnasium.spec import GymnasiumConfig
from rlrun.envs.pictures import picture_of, resized, switch_shadows_off
from rlrun.envs.rows import SingleEnv, Step
from rlrun.system.errors import ExitStatus, RunError

INSTRUCTION_NAMES = ("task_description", "task")  # attributes of LeRobot's environments
RENDERED = spaces.Box(0, 255, (SMALLEST_GRID, SMALLEST_GRID, 3), np.uint8)  # of any size


class GymnasiumEnv(SingleEnv):
    """One environment; its time limit is `env.max_control_steps`, not the registered one."""

    def __init__(self, config: EnvConfig, env: gymnasium.Env):
        self._wanted = config.section(GymnasiumConfig)
        self._image_size = config.image_size
        self._env = env
        self._actions = Actions(env.action_space, self._wanted.id)
        self._is_rendered = self._wanted.is_observed_as_pixels
        space = RENDERED if self._is_rendered else env.observation_space
        self._reader = ObservationReader(space, self._wanted, self._image_size)
        self._success = Success(self._wanted, env.spec, config.max_control_steps)
        self._expert = Expert.of(self._wanted.expert, self._actions)
        self._observation: Any = None
        self._has_drawn = False

    def spaces(self) -> Spaces:
        """Spaces of observations and actions."""
        actions = self._actions.spaces(self._reader.num_proprio, self._reader.num_images)
        hz = (self._env.metadata or {}).get(
            "render_fps"
        )  # by convention the rate of control steps; nothing depends on it
        seen = self._reader.instruction_key is not None  # then each observation has its own
        sentence = self._wanted.instruction or ("" if seen else task_of(self._env))
        return dataclasses.replace(
            actions,
            observed=self._reader.guess,
            cameras=self._reader.cameras,
            control_hz=float(hz) if isinstance(hz, (int, float)) and hz > 0 else None,
            is_hz_nominal=True,
            instructions=(sentence,) if sentence else (),
        )

    @property
    def instruction(self) -> str:
        seen = None if self._observation is None else self._reader.instruction(self._observation)
        return self._wanted.instruction or seen or task_of(self._env) or self._wanted.id

    def start(self, seed: int) -> None:
        self._observation = first_observation(self._env.reset, seed_of_reset(seed, self._wanted), self._wanted.id)
        self._success.start()
        if not self._wanted.has_shadows:
            switch_shadows_off(self._env)  # after each reset: some environments compile their model in it

    def step(self, action: np.ndarray) -> Step:
        returned = self._env.step(self._actions.native(action))
        self._observation, reward, terminated, truncated, self.info = step_results(returned, self._wanted.id)
        success = self._success.after(reward, self.info, terminated, truncated)
        return Step(reward, terminated, truncated, success)

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        seen = self._drawn() if self._is_rendered else self._observation
        return self._reader.images(seen), self._reader.proprio(seen)

    def _drawn(self) -> np.ndarray:
        """Return the picture that the policy observes. Raises RunError if the environment cannot draw at all."""
        try:
            picture = picture_of(self._env.render())
        except Exception as error:  # third-party code may raise anything
            if self._has_drawn:
                raise
            raise no_pixels(self._wanted.id, error) from error
        self._has_drawn = True
        return picture

    def render(self, height: int, width: int) -> np.ndarray:
        return resized(picture_of(self._env.render()), height, width)

    def expert_action(self) -> np.ndarray:
        if self._expert is None:
            raise NotImplementedError(NO_EXPERT)
        self._success.require_word()
        return self._expert.action(self._env, self._observation)

    def close(self) -> None:
        self._env.close()


def no_pixels(name: str, error: Exception) -> RunError:
    """Return the refusal of an environment that draws no pictures for the policy."""
    return RunError(
        f"{name} draws no pictures, which the policy observes.",
        key="env.gymnasium.is_observed_as_pixels",
        value=True,
        cause=f"{type(error).__name__}: {error}",
        remedy="Take an environment whose render() returns uint8 [H, W, 3] with render_mode='rgb_array', or observe "
        "its states: is_observed_as_pixels=false policy.kind=mlp.",
        exit_status=ExitStatus.bad_config,
    )


def task_of(env: gymnasium.Env | None) -> str:
    """Return the instruction that an environment has as an attribute; "" if it has none."""
    inner = None if env is None else env.unwrapped
    attributes = (getattr(inner, name, None) for name in INSTRUCTION_NAMES)
    return next((text for text in attributes if isinstance(text, str)), "")
