"""A VectorEnv made of single environments, for simulators that have one env each."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rlrun.edges.episode_numbers import Totals
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.spaces import Spaces
from rlrun.envs.info_numbers import InfoReader
from rlrun.envs.make import close_or_warn, questions_refused
from rlrun.envs.plausibility import NUM_EQUAL, RepeatedFaults, place_of
from rlrun.envs.vector_env import ChunkBuilder, SimulatorFault, VectorEnv
from rlrun.system.errors import RunError

log = logging.getLogger(__name__)

_LARGEST = float(np.finfo(np.float32).max)


class Step(NamedTuple):
    """The result of one control step. Example: Step(reward=0.1, terminated=False, truncated=False, success=False)."""

    reward: float
    terminated: bool
    truncated: bool  # by the environment itself; the caller applies the time limit
    success: bool


class SingleEnv(ABC):
    """One environment, one episode at a time. Any exception is an infra fault of its row."""

    info: Mapping[str, Any] = MappingProxyType({})  # what else it says of its last control step; numbers become metrics

    @property
    @abstractmethod
    def instruction(self) -> str:
        """The instruction of the running episode."""

    @abstractmethod
    def start(self, seed: int) -> None:
        """Begin an episode that `seed` alone determines."""

    @abstractmethod
    def step(self, action: np.ndarray) -> Step:
        """Run one control step; float32 [A] within the limits."""

    @abstractmethod
    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the present frame: uint8 [N, H, W, 3] and float32 [P]."""

    @abstractmethod
    def render(self, height: int, width: int) -> np.ndarray:
        """Return uint8 [height, width, 3] for people."""

    def expert_action(self) -> np.ndarray:
        """Return float32 [A], the scripted expert's next control step."""
        raise NotImplementedError(
            "this world has no expert: give demonstrations in demos.path, or a policy that begins from scratch"
        )

    @abstractmethod
    def close(self) -> None:
        """Free the environment."""


@dataclass(slots=True)
class _Row:
    env: SingleEnv
    num_steps: int = 0
    is_over: bool = True
    is_broken: bool = False  # if so, made again at the next reset


class RowsEnv(VectorEnv):
    """B environments made by `make`, run one after another; a broken row is made again."""

    def __init__(
        self,
        make: Callable[[], SingleEnv],
        num_envs: int,
        spaces: Spaces,
        image_size: int,
        max_control_steps: int,
        progress: Callable[[], None],
        info: Sequence[str] | None = None,
    ):
        """info: see `env.info`."""
        self._make = make
        self._reader = InfoReader(info)
        self.num_envs = num_envs
        self.spaces = spaces
        self._image_size = image_size
        self._max_control_steps = max_control_steps
        self._repeated = RepeatedFaults(num_envs, needed_first=min(NUM_EQUAL, max(2, num_envs)))
        self._rows: list[_Row] = []
        for _ in range(num_envs):
            self._rows.append(_Row(make()))
            progress()

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        if not self._rows:
            raise RuntimeError("this environment is closed")
        frames = self._blank(len(env_ids))
        texts = []
        for k, (i, seed) in enumerate(zip(env_ids, seeds, strict=True)):
            row = self._rows[i]
            if row.is_broken:
                self._make_again(row, int(i))
            with questions_refused():
                row.env.start(int(seed))
            row.num_steps = 0
            row.is_over = False
            row.is_broken = False
            frames.images[k], proprio = row.env.perceive()
            frames.proprio[k] = as_float32(proprio)
            texts.append(row.env.instruction)
        return Frames(frames.images, frames.proprio, tuple(texts))

    def _make_again(self, row: _Row, at: int) -> None:
        """Replace the environment of a broken row. Raises SimulatorFault if it cannot be made, as it could before."""
        close_or_warn(row.env.close, f"the broken environment of row {at}")
        try:
            row.env = self._make()
        except RunError as error:
            raise SimulatorFault(f"row {at} could not be made again: {error.message} {error.cause or ''}") from error

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else np.asarray(active, bool)
        actions = self.checked(actions, active, np.array([row.is_over for row in self._rows]))
        chunk = ChunkBuilder(*actions.shape[:2])
        frames = self._blank(self.num_envs)
        for i in np.flatnonzero(active).tolist():
            self._run(i, actions[i], chunk, frames)
        self._repeated.completed(int((active & ~chunk.infra_fault).sum()))
        texts = tuple([row.env.instruction for row in self._rows])
        return chunk.result(Frames(frames.images, frames.proprio, texts))

    def _blank(self, num_rows: int) -> Frames:
        images = np.zeros((num_rows, self.spaces.num_images, self._image_size, self._image_size, 3), np.uint8)
        return Frames(images, np.zeros((num_rows, self.spaces.num_proprio), np.float32), ("",) * num_rows)

    def _run(self, i: int, actions: np.ndarray, chunk: ChunkBuilder, frames: Frames) -> None:
        """Run actions [C, A] in row `i`, into its parts of chunk and frames; a fault leaves them empty."""
        row = self._rows[i]
        try:
            with questions_refused():
                self._steps(i, actions, chunk)
            images, proprio = row.env.perceive()
            frames.proprio[i] = as_float32(proprio)
            if self.spaces.num_images:
                frames.images[i] = images
        except RunError:  # a refusal, such as that of breakpoint() in a worker on Ray
            raise
        except Exception as fault:  # third-party code may raise anything; it is an infra fault of this row
            what = f"{type(fault).__name__}: {fault} at control step {row.num_steps}{place_of(fault)}"
            log.warning("row %d broke: %s", i, what, exc_info=fault)
            chunk.fail(i, what)
            row.is_over = row.is_broken = True
            self._repeated.add(fault)  # raises RunError if rows break again and again in the same way

    def _steps(self, i: int, actions: np.ndarray, chunk: ChunkBuilder) -> None:
        row = self._rows[i]
        totals: Totals = {}
        for k, action in enumerate(actions):
            step = row.env.step(action)
            self._reader.add(totals, row.env.info)
            row.num_steps += 1
            if fault := float32_fault("reward", step.reward):
                raise SimulatorFault(fault)
            is_late = row.num_steps >= self._max_control_steps
            truncated = (step.truncated or is_late) and not step.terminated
            chunk.add(i, k, step.reward, step.terminated, truncated, step.success)
            if step.terminated or truncated:
                row.is_over = True
                break
        chunk.infos[i] = step_info(row.num_steps, step, truncated)
        self._reader.write(chunk.infos[i], totals)

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        return self._rows[env_id].env.render(height, width)

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        return np.stack([self._rows[i].env.expert_action() for i in env_ids])

    def info(self, env_id: int) -> Mapping[str, Any]:
        return self._rows[env_id].env.info

    def close(self) -> None:
        for at, row in enumerate(self._rows):
            close_or_warn(row.env.close, f"the environment of row {at}")
        self._rows = []


def as_float32(proprio: np.ndarray) -> np.ndarray:
    """Return the numbers as float32. Raises SimulatorFault, with the first one that is NaN, infinite or too large."""
    with np.errstate(over="ignore"):
        numbers = np.asarray(proprio, np.float32)
    if not np.isfinite(numbers).all():
        number = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise SimulatorFault(float32_fault(f"proprioception {number}", float(np.ravel(proprio)[number])))
    return numbers


def float32_fault(name: str, value: float) -> str:
    """Return the fault of a number of a simulator; "" if float32 holds it."""
    if not math.isfinite(value):
        return f"{name} is {value}"
    return f"{name} is {value:g}, which is too large for float32" if abs(value) > _LARGEST else ""


def step_info(num_steps: int, step: Step, truncated: bool) -> dict:
    """Return info in OmniGibson's format; the goal is the whole task."""
    return {
        "reward": {"task": {}, "reward_breakdown": {"task": step.reward}},
        "done": _done(step.terminated, truncated, step.success),
        "episode_length": num_steps,
    }


@cache
def _done(terminated: bool, truncated: bool, success: bool) -> dict:
    """Return the part of the info that rows and steps share; callers only read it."""
    goal = ["task"]
    return {
        "success": success,
        "termination_conditions": {
            "timeout": {"done": truncated, "success": False},
            "predicate": {"done": terminated, "success": success},
        },
        "goal_status": {"satisfied": goal if success else [], "unsatisfied": [] if success else goal},
    }
