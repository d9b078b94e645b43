"""A vector environment of Gymnasium as rows. Its step moves all rows, and a mask selects the rows to reset.

Shape legend: B rows, C control steps, A actions, N images, P proprioception.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlrun.config.schema import EnvConfig
from rlrun.edges.episode_numbers import Totals
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.envs.gymnasium.actions import (
    NO_EXPERT,
    SUCCESS_KEYS,
    Actions,
    Expert,
    Success,
    number,
    observation_of,
    seed_of_reset,
    vector_results,
)
from rlrun.envs.gymnasium.gymnasium_env import RENDERED, no_pixels, task_of
from rlrun.envs.gymnasium.observations import ObservationReader
from rlrun.envs.gymnasium.spec import GymnasiumConfig, Vectorization, delayed_together
from rlrun.envs.info_numbers import InfoReader, row_info
from rlrun.envs.make import close_or_warn, questions_refused
from rlrun.envs.pictures import picture_of, resized, switch_shadows_off
from rlrun.envs.rows import Step, as_float32, float32_fault, step_info
from rlrun.envs.vector_env import ChunkBuilder, SimulatorFault, VectorEnv
from rlrun.system.errors import ExitStatus, RunError

log = logging.getLogger(__name__)
SINGLES = (Vectorization.sync, Vectorization.async_)  # made of single environments


class VectorRows(VectorEnv):
    """The rows of `env`, in any of Gymnasium's three autoreset modes.

    Rows that have ended are stepped with the others; their results are dropped until their next reset. A running row
    that is left out of a chunk ends with that chunk, since it cannot stand still. Raises RunError for an environment
    that can only reset all of its rows at once.
    env: typed loosely, since gymnasium.vector.VectorEnv's annotations lack the list of seeds that its classes accept.
    """

    def __init__(self, env: Any, config: EnvConfig, progress: Callable[[], None]):
        if config.action_delay:
            raise delayed_together(config.action_delay)
        self._env = env
        self._wanted = config.section(GymnasiumConfig)
        self.num_envs = env.num_envs
        self._mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._size = config.image_size
        self._max_steps = config.max_control_steps
        self._actions = Actions(env.single_action_space, self._wanted.id)
        self._is_rendered = self._wanted.is_observed_as_pixels
        space = RENDERED if self._is_rendered else env.single_observation_space
        self._reader = ObservationReader(space, self._wanted, config.image_size)
        found = self._actions.spaces(self._reader.num_proprio, self._reader.num_images)
        self.spaces = replace(found, observed=self._reader.guess, cameras=self._reader.cameras)
        self._success = [Success(self._wanted, env.spec, self._max_steps) for _ in range(self.num_envs)]
        self._expert = Expert.of(self._wanted.expert, self._actions)
        self._is_over, self._has_ended = np.ones(self.num_envs, bool), np.zeros(self.num_envs, bool)
        self._num_steps = np.zeros(self.num_envs, int)
        self._has_drawn = False
        self._is_reuse_told = False
        self._seen: list[Any] = [None] * self.num_envs  # last observation of each row
        self._faults: dict[int, str] = {}  # row -> fault of a reward in the running chunk
        self._info_reader = InfoReader(config.info)
        self._totals: list[Totals] = []  # numbers of each row's info in the running chunk
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]  # of the last control step
        self._is_closed = False
        progress()
        self._require_masks()
        progress()

    def _require_masks(self) -> None:
        """Check masked resets: reset all rows, then the first alone; no other row may change."""
        try:
            before = self._split(observation_of(self._env.reset(seed=list(range(self.num_envs))), self._wanted.id))
            after = self._split(self._reset(np.arange(1), np.array([self.num_envs])))
            fault = "" if all(map(_same, before[1:], after[1:])) else _reset_fault(before, after)
        except RunError:
            raise
        except Exception as error:  # third-party code, which may not support this option
            fault = f"{type(error).__name__}: {error}"
        if fault:
            others = [mode.value for mode in SINGLES if mode is not self._wanted.vectorization]
            raise RunError(
                "This vector environment cannot reset single rows.",
                key="env.gymnasium.vectorization",
                value=None if self._wanted.vectorization is None else self._wanted.vectorization.value,
                cause=f'reset(seed=[...], options={{"reset_mask": ...}}): {fault}.',
                remedy=f"Take vectorization={' or '.join(others)}, or null: single environments.",
                exit_status=ExitStatus.bad_config,
            )

    def _reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Any:
        mask = np.zeros(self.num_envs, bool)
        all_seeds = [0] * self.num_envs
        mask[env_ids] = True
        for i, seed in zip(env_ids.tolist(), seeds.tolist(), strict=True):
            all_seeds[i] = seed_of_reset(seed, self._wanted)
        with questions_refused():
            returned = self._env.reset(seed=all_seeds, options={"reset_mask": mask})
            observations = observation_of(returned, self._wanted.id)
        for env in () if self._wanted.has_shadows else self._singles():
            switch_shadows_off(env)
        return observations

    def _singles(self) -> Any:
        """Return the environments of this process; empty if they are in others, or are one."""
        return getattr(self._env, "envs", None) or ()

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        if self._is_closed:
            raise RuntimeError("this environment is closed")
        env_ids = np.asarray(env_ids)
        seeds = np.asarray(seeds)
        observations = self._split(self._reset(env_ids, seeds))
        self._is_over[env_ids] = False
        self._has_ended[env_ids] = False
        self._num_steps[env_ids] = 0
        pictures = self._pictures()
        for i in env_ids.tolist():
            self._success[i].start()
            self._seen[i] = observations[i] if pictures is None else pictures[i]
        frames, faults = self._frames(env_ids.tolist())
        for at, fault in faults.items():
            raise SimulatorFault(f"{fault} at the reset with seed {seeds[at]}")
        return frames

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else np.asarray(active, bool)
        actions = self.checked(actions, active, self._is_over)
        self._is_over |= ~active  # rows cannot stand still: a row that is left out has ended, until its next reset
        chunk = ChunkBuilder(*actions.shape[:2])
        self._faults = {}
        self._totals = [{} for _ in range(self.num_envs)]
        running = active.copy()
        for k in range(actions.shape[1]):
            if not running.any():
                break
            running &= ~self._step(actions[:, k], running, chunk, k)
        return self._result(chunk, active)

    def _step(self, actions: np.ndarray, running: np.ndarray, chunk: ChunkBuilder, k: int) -> np.ndarray:
        """Run one control step. Returns bool [B]: the rows that end with it."""
        self._restart_ended()
        observation, rewards, terminated, truncated, info = self._step_env(actions, running)
        self._has_ended |= terminated | truncated
        observations = self._split(observation)
        pictures = self._pictures()
        ends = np.zeros(self.num_envs, bool)
        for i in np.flatnonzero(running).tolist():
            self._num_steps[i] += 1
            is_kept = bool(terminated[i] or truncated[i]) and self._mode is AutoresetMode.SAME_STEP
            step = self._outcome(
                i, rewards[i], bool(terminated[i]), bool(truncated[i]), _success_info(info, i, is_kept)
            )
            if pictures is not None:
                self._seen[i] = self._picture_before(i) if is_kept else pictures[i]
            elif is_kept:
                self._seen[i] = self._last_of(info["final_obs"][i], observations[i], self._seen[i])
            else:
                self._seen[i] = observations[i]
            if fault := float32_fault("reward", step.reward):
                self._faults.setdefault(i, fault)
            chunk.add(i, k, 0.0 if i in self._faults else step.reward, *step[1:])
            chunk.infos[i] = step_info(int(self._num_steps[i]), step, step.truncated)
            self._infos[i] = self._info_of(info, i, is_kept) if info else {}
            self._info_reader.add(self._totals[i], self._infos[i])
            ends[i] = self._is_over[i] = step.terminated or step.truncated
        return ends

    def _info_of(self, info: dict[str, Any], row: int, is_kept: bool) -> dict[str, Any]:
        """Return the info of a row. is_kept: see `_success_info`."""
        last = info.get("final_info") if is_kept else None
        return row_info(last if isinstance(last, Mapping) else info, row, self.num_envs)

    def _restart_ended(self) -> None:
        """Reset the rows that have ended if the environment does not, since it refuses to step them."""
        if self._mode is AutoresetMode.DISABLED and self._has_ended.any():
            ended = np.flatnonzero(self._has_ended)
            self._reset(ended, ended)
            self._has_ended[ended] = False

    def _step_env(self, actions: np.ndarray, running: np.ndarray) -> Any:
        """Step the environment; rows that do not run take the idle action. Raises SimulatorFault if it breaks."""
        native = [self._actions.native(a if on else self._idle) for a, on in zip(actions, running, strict=True)]
        batch = np.stack(native) if self._actions.is_box else np.asarray(native)
        try:
            with questions_refused():
                returned = self._env.step(batch)
            return vector_results(returned, self.num_envs, self._wanted.id)
        except RunError:  # a refusal, such as that of breakpoint() in a worker on Ray
            raise
        except Exception as error:  # third-party code may raise anything; no row can be trusted afterwards
            raise SimulatorFault(f"the vector environment broke: {type(error).__name__}: {error}") from error

    def _outcome(self, row: int, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]) -> Step:
        """Return the reward, end and success of a row, whose episode is cut at its limit of control steps."""
        reward = number(reward, "reward", self._wanted.id)
        success = self._success[row].after(reward, info, terminated, truncated)
        is_late = bool(self._num_steps[row] >= self._max_steps)
        return Step(reward, terminated, (truncated or is_late) and not terminated, success)

    def _last_of(self, last: Any, following: Any, before: Any) -> Any:
        """Return the last observation of an episode; that before it if `last` is the first of the next episode.

        An environment that returns one array for all observations overwrites the last one while it resets.
        """
        if not _same(last, following) or _same(before, following):
            return last
        if not self._is_reuse_told:
            self._is_reuse_told = True
            log.warning(
                "%s: the last observation of an ended episode is the first of the next one: the environment may return "
                "one array for all; the observation before it is used. Return a copy, or set "
                "env.gymnasium.vectorization=sync",
                self._wanted.id,
            )
        return before

    def _picture_before(self, row: int) -> Any:
        """Return the last picture of a row whose environment shows the next episode already."""
        if not self._is_reuse_told:
            self._is_reuse_told = True
            log.warning(
                "%s resets a row in the step that ends its episode, and no picture shows the end: the one before it "
                "is used. Set env.gymnasium.vectorization=sync for the last one",
                self._wanted.id,
            )
        return self._seen[row]

    @property
    def _idle(self) -> np.ndarray:
        """Return float32 [A], the action for rows that have ended."""
        return np.clip(np.zeros(self.spaces.num_actions, np.float32), *self.spaces.limits)

    def _result(self, chunk: ChunkBuilder, active: np.ndarray) -> ChunkResult:
        frames, faults = self._frames([i if on else None for i, on in enumerate(active.tolist())])
        for i in np.flatnonzero(active).tolist():
            what = self._faults.get(i) or faults.get(i)
            if what:
                what = f"{what}, at control step {self._num_steps[i]} or earlier in its chunk"
                log.warning("row %d broke: %s", i, what)
                chunk.fail(i, what)
                frames.images[i] = 0
                frames.proprio[i] = 0.0
                self._is_over[i] = True
            else:
                self._info_reader.write(chunk.infos[i], self._totals[i])
        return chunk.result(frames)

    def _frames(self, rows: list[int | None] | list[int]) -> tuple[Frames, dict[int, str]]:
        """Return the frames of each row, and the faults of its numbers by place; None gives zeros."""
        images = np.zeros((len(rows), self.spaces.num_images, self._size, self._size, 3), np.uint8)
        proprio = np.zeros((len(rows), self.spaces.num_proprio), np.float32)
        tasks = self._tasks()
        texts = []
        faults = {}
        for at, i in enumerate(rows):
            seen = None if i is None else self._seen[i]
            text = None if seen is None else self._reader.instruction(seen)
            texts.append(self._wanted.instruction or text or (tasks[i] if i is not None else "") or self._wanted.id)
            if seen is not None:
                images[at] = self._reader.images(seen)
                try:
                    proprio[at] = as_float32(self._reader.proprio(seen))
                except SimulatorFault as fault:
                    faults[at] = str(fault)
        return Frames(images, proprio, tuple(texts)), faults

    def _tasks(self) -> list[str]:
        """Return each environment's task attribute. A subprocess would die if asked for an attribute that it lacks."""
        return [task_of(env) for env in self._singles() or [None] * self.num_envs]

    def _pictures(self) -> list[np.ndarray] | None:
        """Return rendered frames if pixels are observed, else None."""
        if not self._is_rendered:
            return None
        try:
            pictures = self._drawn()
        except Exception as error:  # third-party code may raise anything
            if self._has_drawn:
                raise
            raise no_pixels(self._wanted.id, error) from error
        self._has_drawn = True
        return pictures

    def _drawn(self) -> list[np.ndarray]:
        """Return a picture of each row. Raises ValueError if the environment draws none."""
        drawn = self._env.render()
        if drawn is None or len(drawn) != self.num_envs:
            raise ValueError(
                f"render() returns {'None' if drawn is None else len(drawn)}, not {self.num_envs} pictures"
            )
        return [picture_of(picture) for picture in drawn]

    def _split(self, observation: Any) -> list[Any]:
        return [_row(self._env.single_observation_space, observation, i) for i in range(self.num_envs)]

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        return resized(self._drawn()[env_id], height, width)

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        singles = self._singles()
        if self._expert is None or not singles or self._is_rendered:
            raise NotImplementedError(
                NO_EXPERT
                if self._expert is None
                else "the expert needs the environments in this process, and their "
                "observations: env.gymnasium.vectorization=null or sync, is_observed_as_pixels=false"
            )
        for i in env_ids:
            self._success[i].require_word()
        return np.stack([self._expert.action(singles[i], self._seen[i]) for i in env_ids])

    def info(self, env_id: int) -> Mapping[str, Any]:
        return self._infos[env_id]

    def close(self) -> None:
        if not self._is_closed:
            close_or_warn(self._env.close, "the vector environment")
        self._is_closed = True


def _row(space: spaces.Space, observation: Any, row: int) -> Any:
    """Return row `row` of a batched observation, copied, because vector environments reuse their arrays."""
    if isinstance(space, spaces.Dict):
        return {name: _row(below, observation[name], row) for name, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(below, part, row) for below, part in zip(space.spaces, observation, strict=True))
    value = observation[row]
    return value.copy() if isinstance(value, np.ndarray) else value


def _reset_fault(before: list[Any], after: list[Any]) -> str:
    """Return why the reset of the first row changed others."""
    if all(_same(before[0], row) for row in before) and all(_same(after[0], row) for row in after):
        return "all rows show the same: the environments may share one array, which none of them copies"
    return "all rows were reset together"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return all(map(_same, one, other))
    return bool(np.array_equal(one, other))


def _success_info(info: dict[str, Any], row: int, is_kept: bool) -> dict[str, Any]:
    """Return the info on the success of a row.

    is_kept: its episode has ended under SAME_STEP, so that `final_info` has it; some environments leave it in `info`.
    """
    for source in [info.get("final_info", {}), info] if is_kept else [info]:
        said = {key: source[key][row] for key in SUCCESS_KEYS if key in source and _is_of(source, key, row)}
        if said:
            return said
    return {}


def _is_of(info: dict[str, Any], key: str, row: int) -> bool:
    """Return whether the environment of a row gave this key; the mask of a key says so."""
    mask = info.get(f"_{key}")
    return mask is None or bool(mask[row])
