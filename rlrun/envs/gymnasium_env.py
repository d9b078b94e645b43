"""Any environment of Gymnasium's registry: rows of single environments behind the VectorEnv interface.

A vector observation, flattened, is the proprioception; a picture (uint8 [H, W, 3]), or with
`env.gymnasium.is_observed_as_pixels` what the environment renders, is the one camera image.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from PIL import Image

from rlrun.config.schema import EnvConfig, Renderer
from rlrun.data.messages import ChunkResult, Frames
from rlrun.envs.vector_env import VectorEnv

log = logging.getLogger(__name__)

MAX_CHOICES = 256  # a choice travels as a uint8 token
SUCCESS_KEYS = ("success", "is_success")  # of Meta-World, of Gymnasium-Robotics


@dataclass
class _Row:
    """One environment and its running episode."""

    env: gymnasium.Env
    observation: Any = None
    num_steps: int = 0
    total: float = 0.0  # rewards of the episode
    is_over: bool = True
    is_broken: bool = False  # to be made anew at the next reset


@dataclass(frozen=True)
class _Outcome:
    """What a chunk did to one row; the defaults are those of a row that was not stepped."""

    terminated: bool = False
    truncated: bool = False
    success: bool = False
    fault: bool = False
    info: dict = field(default_factory=dict)


class GymnasiumVectorEnv(VectorEnv):
    """B rows of `env.gymnasium.id`. The time limit is `env.max_control_steps`, whatever was registered."""

    def __init__(self, config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None):
        self.config, self.num_envs = config, num_envs
        self._choose_renderer()
        self._rows: list[_Row] = []
        for _ in range(num_envs):
            self._rows.append(_Row(self._make()))
            progress()
        env = self._rows[0].env
        self._space = env.observation_space
        self._sees_pixels = config.gymnasium.is_observed_as_pixels
        self._has_image = self._sees_pixels or _is_image(self._space)
        self.num_images = int(self._has_image)
        self.num_proprio = 0 if self._has_image else spaces.flatdim(self._space)
        self._describe_actions(env.action_space)
        threshold = env.spec.reward_threshold if env.spec is not None else None
        self._success_return = config.gymnasium.success_return
        if self._success_return is None:
            self._success_return = threshold

    def _make(self) -> gymnasium.Env:
        wanted = self.config.gymnasium
        try:
            return gymnasium.make(
                wanted.id,
                max_episode_steps=self.config.max_control_steps,
                disable_env_checker=True,  # it warns of what is not ours to change, at every step
                render_mode="rgb_array",
                **wanted.kwargs,
            )
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise RuntimeError(
                f"env.gymnasium.id={wanted.id} cannot be made: {type(error).__name__}: {error}; check the id, "
                "env.gymnasium.kwargs, and that its package is installed ('module:Name-v0' imports the module first)"
            ) from error

    def _choose_renderer(self) -> None:
        """Where there is no display: which OpenGL MuJoCo's environments use, and that pygame opens no window."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        os.environ.setdefault("MUJOCO_GL", "osmesa" if self._prefers_osmesa() else "egl")

    def _prefers_osmesa(self) -> bool:
        if self.config.renderer is not Renderer.auto:
            return self.config.renderer is Renderer.osmesa
        try:
            ctypes.CDLL("libEGL.so.1")
        except OSError:
            return True
        return False

    def _describe_actions(self, space: spaces.Space) -> None:
        if isinstance(space, spaces.Box):
            self.num_choices = None
            self.action_low, self.action_high = (
                limit.astype(np.float32).reshape(-1) for limit in (space.low, space.high)
            )
        elif isinstance(space, spaces.Discrete) and space.n <= MAX_CHOICES:
            self.num_choices = int(space.n)
            self.action_low, self.action_high = np.zeros(1, np.float32), np.full(1, space.n - 1, np.float32)
        else:
            raise RuntimeError(
                f"env.gymnasium.id={self.config.gymnasium.id}: its actions are {space}; rlrun knows Box, and Discrete "
                f"of at most {MAX_CHOICES}: register a variant with a wrapper that turns them into one of these"
            )
        self._action_space = space
        self.num_actions = len(self.action_low)
        self.action_names = tuple(f"action/{i}" for i in range(self.num_actions))

    # --- episodes ---------------------------------------------------------------------------

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        if not self._rows:
            raise RuntimeError("this environment is closed")
        for i, seed in zip(env_ids, seeds, strict=True):
            row = self._rows[i]
            if row.is_broken:
                row.env.close()
                row.env = self._make()
            row.observation, _ = row.env.reset(seed=int(seed))
            row.num_steps, row.total, row.is_over, row.is_broken = 0, 0.0, False, False
        return self._frames([self._rows[i] for i in env_ids])

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else np.asarray(active, bool)
        actions = self._checked(actions, active)
        rewards = np.zeros(actions.shape[:2], np.float32)
        step_valid = np.zeros(actions.shape[:2], bool)
        outcomes = [_Outcome()] * self.num_envs
        for i in np.flatnonzero(active):
            outcomes[i] = self._step_row(self._rows[i], actions[i], rewards[i], step_valid[i])
        seen = [
            row if on and not out.fault else None for row, on, out in zip(self._rows, active, outcomes, strict=True)
        ]
        success = np.array([outcome.success for outcome in outcomes])
        return ChunkResult(
            frames=self._frames(seen),
            rewards=rewards,
            step_valid=step_valid,
            terminated=np.array([outcome.terminated for outcome in outcomes]),
            truncated=np.array([outcome.truncated for outcome in outcomes]),
            success=success,
            q_score=success.astype(np.float32),
            infra_fault=np.array([outcome.fault for outcome in outcomes]),
            infos=tuple(outcome.info for outcome in outcomes),
        )

    def _checked(self, actions: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Actions clipped to their limits; refuses wrong shapes, numbers that are not finite, and ended rows."""
        if actions.ndim != 3 or actions.shape[::2] != (self.num_envs, self.num_actions):
            raise ValueError(f"actions are {actions.shape}, expected ({self.num_envs}, C, {self.num_actions})")
        if not np.isfinite(actions[active]).all():
            raise ValueError("actions of active rows hold NaN or infinity: the policy is broken, not the simulator")
        over = [i for i in np.flatnonzero(active) if self._rows[i].is_over]
        if over:
            raise RuntimeError(
                f"rows {over} have ended or were never reset: reset() them, or leave them out of `active`"
            )
        return np.clip(actions, self.action_low, self.action_high)

    def _step_row(self, row: _Row, actions: np.ndarray, rewards: np.ndarray, valid: np.ndarray) -> _Outcome:
        """Run one row for actions [C, A], filling rewards [C] and valid [C]; stops where the episode ends."""
        for k, action in enumerate(actions):
            try:
                row.observation, reward, terminated, truncated, info = row.env.step(self._native(action))
                is_sound = bool(np.isfinite(reward)) and (self._has_image or self._is_finite(row.observation))
            except Exception as fault:  # third parties' code: whatever it raises is this row's infra fault
                log.warning("%s broke: %r", self.config.gymnasium.id, fault)
                is_sound = False
            if not is_sound:
                row.is_over = row.is_broken = True
                rewards[:], valid[:] = 0.0, False
                return _Outcome(fault=True)
            row.num_steps += 1
            row.total += float(reward)
            rewards[k], valid[k] = reward, True
            row.is_over = terminated or truncated
            if row.is_over:
                break
        truncated = bool(truncated and not terminated)
        success = self._is_success(row, info)
        return _Outcome(
            bool(terminated), truncated, success, False, _step_info(row, float(reward), terminated, truncated, success)
        )

    def _native(self, action: np.ndarray) -> np.ndarray | int:
        space = self._action_space
        if isinstance(space, spaces.Discrete):
            return int(space.start) + int(np.rint(action[0]))
        return action.reshape(space.shape).astype(space.dtype)

    def _is_success(self, row: _Row, info: dict) -> bool:
        for key in SUCCESS_KEYS:
            if key in info:
                return bool(info[key])
        return self._success_return is not None and row.total >= self._success_return

    # --- what is perceived ------------------------------------------------------------------

    def _is_finite(self, observation: Any) -> bool:
        return bool(np.isfinite(self._flat(observation)).all())

    def _flat(self, observation: Any) -> np.ndarray:
        return np.asarray(spaces.flatten(self._space, observation), np.float32)

    def _frames(self, rows: list[_Row | None]) -> Frames:
        """What each row perceives; None gives zeros."""
        size = self.config.image_size
        images = np.zeros((len(rows), self.num_images, size, size, 3), np.uint8)
        proprio = np.zeros((len(rows), self.num_proprio), np.float32)
        for i, row in enumerate(rows):
            if row is None:
                continue
            if self._has_image:
                images[i, 0] = _resized(row.env.render() if self._sees_pixels else row.observation, size, size)
            else:
                proprio[i] = self._flat(row.observation)
        return Frames(images, proprio, (self.config.gymnasium.id,) * len(rows))

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        return _resized(np.asarray(self._rows[env_id].env.render()), height, width)

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError(
            f"{self.config.gymnasium.id} has no expert: give demonstrations in demos.path, or train without them "
            "(policy.kind=mlp or cnn)"
        )

    def close(self) -> None:
        for row in self._rows:
            row.env.close()
        self._rows = []


def _is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and space.shape[2:] == (3,)


def _resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    if picture.shape[:2] == (height, width):
        return picture
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))


def _step_info(row: _Row, reward: float, terminated: bool, truncated: bool, success: bool) -> dict:
    """As OmniGibson words it; the goal is the whole task."""
    goal = ["task"]
    return {
        "reward": {"task": {}, "reward_breakdown": {"task": reward}},
        "done": {
            "success": success,
            "termination_conditions": {
                "timeout": {"done": truncated, "success": False},
                "predicate": {"done": bool(terminated), "success": success},
            },
            "goal_status": {"satisfied": goal if success else [], "unsatisfied": [] if success else goal},
        },
        "episode_length": row.num_steps,
    }
