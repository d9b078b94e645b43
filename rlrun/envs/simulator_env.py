"""A simulator as a Gymnasium vector environment: what `rlrun.make_env` returns.

Shape legend: B rows, N images per row, C control steps per chunk, A action dimensions, P proprioception.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.edges.episode_numbers import NUMBERS, TERM, TERMS
from rlrun.edges.frames import Frames
from rlrun.envs import vector_env

LONGEST_INSTRUCTION = 4096  # characters
# pixels of an overview
HEIGHT = 240
WIDTH = 320


class SimulatorEnv(VectorEnv):
    """A simulator with the spaces and the calls of a Gymnasium vector environment, whose wrappers take it.

    `with` closes it. A row that ended is reset by the next `step`, which ignores its actions
    (Gymnasium's AutoresetMode.NEXT_STEP).
    """

    def __init__(self, env: vector_env.VectorEnv, image_size: int):
        """image_size: width and height of a picture."""
        self.env = env
        self.num_envs = env.num_envs
        self.spaces = env.spaces
        self.metadata = {
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "render_modes": ["rgb_array"],
            "render_fps": env.spaces.control_hz or 30.0,
        }
        self.render_mode = "rgb_array"
        self.single_observation_space = _observation_space(env, image_size)
        self.single_action_space = spaces.Box(*env.spaces.limits, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        self._seed: int | None = None  # of the next episode; None: no episode has begun
        self._is_over = np.zeros(env.num_envs, bool)
        self._frames: Frames | None = None  # of all rows

    def __repr__(self) -> str:
        """Return its simulator, rows and spaces in one line."""
        made_by = self.env.fingerprint.get("simulator", type(self.env).__name__)
        return f"SimulatorEnv({made_by}, num_envs={self.num_envs}, action_space={self.action_space})"

    def reset(
        self, seed: int | Sequence[int] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin episodes in all rows. Returns (observations, {}).

        seed: row i begins with `seed` + i, or with the i-th of a list; None: with the seeds that follow the last ones,
        from 0 on. options: `reset_mask`, bool [B], begins episodes in some rows only.
        Observations: images uint8 [B, N, H, W, 3], proprio float32 [B, P], instructions B sentences.
        """
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool)), bool)
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"reset_mask is {mask.tolist()}, expected {self.num_envs} flags, one at least true")
        rows = np.flatnonzero(mask)
        if self._frames is None and rows.size < self.num_envs:
            raise RuntimeError("the first reset() begins episodes in all rows")
        fresh = self.env.reset(rows, self._chosen_seeds(seed)[rows])
        self._frames = fresh if self._frames is None else self._frames.replaced(rows, fresh)
        self._is_over[rows] = False
        return _observed(self._frames), {}

    def step(self, actions: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """(observations, rewards float32 [B], terminated, truncated bool [B], info) after one chunk, or control step.

        actions: float32 [B, C, A], or [B, A]. A reward is the sum over the chunk. info: success bool [B]; infra_fault
        bool [B], the simulator broke in that row, whose episode is void and truncated; each number of the world's info,
        after the last control step, and each term of an own reward as `reward/NAME`, float64 [B], with Gymnasium's mask
        `_NAME` of the rows that have it. Raises RuntimeError before the first reset.
        """
        chunk = np.asarray(actions, np.float32)
        chunk = chunk[:, None] if chunk.ndim == 2 else chunk
        if self._frames is None:
            raise RuntimeError("reset() comes before step()")
        again = np.flatnonzero(self._is_over)
        result = self.env.step_chunk(chunk, ~self._is_over)
        frames = result.frames
        if again.size:
            frames = frames.replaced(again, self.env.reset(again, self._next_seeds(again.size)))
        self._is_over = result.ended & ~self._is_over
        self._frames = frames
        info = _numbers(result.infos) | {"success": result.success, "infra_fault": result.infra_fault}
        truncated = result.truncated | result.infra_fault  # by either flag a caller knows that the next step is a reset
        return _observed(frames), result.rewards.sum(-1), result.terminated, truncated, info

    def render(  # type: ignore[override]  # Gymnasium's takes no arguments
        self, row: int | None = None, height: int = HEIGHT, width: int = WIDTH
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Return an overview of a row, uint8 [height, width, 3]; None: a tuple of those of all rows."""
        if row is not None:
            return self.env.render(row, height, width)
        return tuple(self.env.render(one, height, width) for one in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the simulator; `close` calls it once."""
        self.env.close()

    def __enter__(self) -> SimulatorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chosen_seeds(self, seed: int | Sequence[int] | None) -> np.ndarray:
        """Return the seeds of a reset, int [B]."""
        if seed is None:
            return self._next_seeds(self.num_envs)
        seeds = seed + np.arange(self.num_envs) if isinstance(seed, (int, np.integer)) else np.array(seed, np.int64)
        if seeds.shape != (self.num_envs,):
            raise ValueError(f"there are {seeds.size} seeds for {self.num_envs} rows")
        self._seed = int(seeds.max()) + 1
        return seeds

    def _next_seeds(self, count: int) -> np.ndarray:
        first = self._seed or 0
        self._seed = first + count
        return np.arange(first, self._seed)


def _observation_space(env: vector_env.VectorEnv, size: int) -> spaces.Dict:
    """Return the space of one row's observation."""
    sentences = "".join(env.spaces.instructions)
    characters = "".join(sorted({*string.printable, *sentences}))
    return spaces.Dict(
        {
            "images": spaces.Box(0, 255, (env.spaces.num_images, size, size, 3), np.uint8),
            "proprio": spaces.Box(-np.inf, np.inf, (env.spaces.num_proprio,), np.float32),
            "instructions": spaces.Text(LONGEST_INSTRUCTION, min_length=0, charset=characters),
        }
    )


def _numbers(infos: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return each number of the rows' infos, float64 [B], and the mask of the rows that have it, bool [B]."""
    by_row = [_of_row(info) for info in infos]
    found: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for row in by_row for name in row):
        found[name] = np.array([row.get(name, 0.0) for row in by_row])
        found[f"_{name}"] = np.array([name in row for row in by_row])
    return found


def _of_row(info: Mapping[str, Any]) -> dict[str, float]:
    last = {name: total[2] for name, total in info.get(NUMBERS, {}).items()}
    return last | {TERM + name: value for name, value in info.get(TERMS, {}).items()}


def _observed(frames: Frames) -> dict[str, Any]:
    return {"images": frames.images, "proprio": frames.proprio, "instructions": frames.instructions}
