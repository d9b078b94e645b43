"""A simulator whose reward is computed by functions of the user, one control step after another.

It needs the frames after each control step, so that a world with pictures draws them C times as often.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlrun.config.own_reward import KEY, SIMULATOR, RewardTerm
from rlrun.config.sections import load_object
from rlrun.edges.episode_numbers import LEFT_OUT, NUMBERS, TERMS, Totals, add_totals
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.envs.info_numbers import number_of
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError

PARAMETERS = ("observation", "action", "info", "reward")
PREVIOUS = "previous"  # a parameter of this name gets the observation before the action
_LARGEST = float(np.finfo(np.float32).max)


class TermFunction:
    """The function of one term. Faults in it raise RunError with its name, file and line."""

    def __init__(self, term: RewardTerm, limit: float | None = None):
        """Import it. limit: of the weighted value, `env.max_abs_reward`; None: none.

        Raises RunError if it is no function of observation, action, info and reward.
        """
        self._limit = _LARGEST if limit is None else min(limit, _LARGEST)
        self.name = term.name
        self._location = term.location
        self._weight = term.weight
        try:
            function = load_object(term.location)
        except Exception as error:  # the module of a user may raise anything
            is_absent = isinstance(error, (ModuleNotFoundError, AttributeError))  # which says it all
            place = "" if is_absent else _place(error, None)
            raise self._fault("cannot be imported", f"{_described(error)}{place}") from error
        self._file, line = _source_of(function)
        self._defined_at = f"{self._file}:{line}" if self._file else "its module"
        self.takes_previous = self._takes_previous(function)
        self._function: Callable[..., Any] = function

    def _takes_previous(self, function: Any) -> bool:
        """Return whether the function takes the observation before. Raises RunError if it cannot be called."""
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # no function, or one of C, which says nothing of its parameters
            if callable(function):
                return False
            raise self._fault("is no function", f"It is {type(function).__name__}.") from None
        takes_previous = PREVIOUS in parameters
        try:
            inspect.signature(function).bind(*PARAMETERS, **({PREVIOUS: None} if takes_previous else {}))
        except TypeError as error:
            taken = f"It takes ({', '.join(parameters)})"
            raise self._fault("takes other arguments", f"{taken}, {self._defined_at}: {error}.") from error
        return takes_previous

    def __call__(self, arguments: tuple[Any, ...], previous: dict[str, Any] | None, where: str) -> float:
        """Return the weighted value for one control step. where: for messages."""
        try:
            value = self._function(*arguments, previous=previous) if self.takes_previous else self._function(*arguments)
        except Exception as error:  # the function of a user may raise anything
            cause = f"{_described(error)}{_place(error, self._file)} {where}."
            raise self._fault(f"raised {type(error).__name__}", cause) from error
        number = number_of(value)
        if number is None:
            raise self._fault("returns no number", f"It is {_shown(value)} ({self._defined_at}) {where}.")
        if not math.isfinite(number):
            raise self._fault(f"returns {number}", f"It is defined at {self._defined_at}; that was {where}.")
        weighted = self._weight * number
        if abs(weighted) > self._limit:
            cause = f"Its weighted value is {weighted:g} ({self._defined_at}) {where}."
            raise self._fault(f"returns more than env.max_abs_reward={self._limit:g}", cause)
        return weighted

    def _fault(self, what: str, cause: str) -> RunError:
        return RunError(
            f"The reward {self._location} {what}.",
            key=KEY,
            value=self._location,
            cause=cause,
            remedy="Repair the function: (observation, action, info, reward) -> one finite number; `rlrun "
            "check-simulator` with the same arguments tries it. docs/howto/rewards.md.",
            exit_status=ExitStatus.bad_input,
        )


class OwnRewardEnv(VectorEnv):
    """The rows of `env`, with the sum of the terms as reward."""

    def __init__(self, env: VectorEnv, terms: Sequence[RewardTerm], limit: float | None = None):
        """limit: see `TermFunction`. Raises RunError for a function that cannot be called."""
        self._env = env
        self._terms = [TermFunction(term, limit) for term in terms]
        self.num_envs = env.num_envs
        self.spaces = env.spaces
        self.fingerprint = env.fingerprint
        self._num_steps = np.zeros(env.num_envs, int)  # control steps of the running episodes
        self._seeds = np.zeros(env.num_envs, np.int64)
        self._seen: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]  # last observation of each row

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        frames = self._env.reset(env_ids, seeds)
        self._num_steps[env_ids] = 0
        self._seeds[env_ids] = seeds
        for at, row in enumerate(np.asarray(env_ids).tolist()):
            self._seen[row] = _observation(frames, at)
        return frames

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else np.asarray(active, bool)
        actions = self.checked(actions, active, np.zeros(self.num_envs, bool))  # `env` knows which rows have ended
        whole = _WholeChunk(*actions.shape[:2])
        running = active.copy()
        for k in range(actions.shape[1]):
            if k and not running.any():
                break
            step = self._env.step_chunk(actions[:, k : k + 1], running)
            whole.add(k, running, step)
            for row in np.flatnonzero(running & ~step.infra_fault).tolist():
                whole.pay(row, k, self._judged(row, actions[row, k], step))
            running &= ~step.ended
        return whole.merged()

    def _judged(self, row: int, action: np.ndarray, step: ChunkResult) -> dict[str, float]:
        """Return the terms of one control step of a row, and the reward that the simulator gave."""
        self._num_steps[row] += 1
        observation = _observation(step.frames, row)
        said = float(step.rewards[row, 0])
        info = {
            "success": bool(step.success[row]),
            "q_score": float(step.q_score[row]),
            "terminated": bool(step.terminated[row]),
            "truncated": bool(step.truncated[row]),
            **self._env.info(row),
        }
        where = f"at control step {self._num_steps[row]} of seed {self._seeds[row]}"
        arguments = (observation, _read_only(action), info, said)
        values = {term.name: term(arguments, self._seen[row], where) for term in self._terms}
        self._seen[row] = observation
        return {**values, SIMULATOR: said}

    def info(self, env_id: int) -> Mapping[str, Any]:
        return self._env.info(env_id)

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        return self._env.render(env_id, height, width)

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        return self._env.expert_action(env_ids)

    def close(self) -> None:
        self._env.close()


class _WholeChunk:
    """The result of a chunk, from those of its control steps."""

    def __init__(self, num_rows: int, num_steps: int):
        self._rewards = np.zeros((num_rows, num_steps), np.float32)
        self._step_valid = np.zeros((num_rows, num_steps), bool)
        self._totals: list[Totals] = [{} for _ in range(num_rows)]
        self._terms: list[dict[str, float]] = [{} for _ in range(num_rows)]
        self._left_out: list[dict[str, Any]] = [{} for _ in range(num_rows)]  # keys of infos that a step may lack
        self._last: ChunkResult | None = None

    def add(self, k: int, running: np.ndarray, step: ChunkResult) -> None:
        """Add control step `k` of the rows of `running` (bool [B])."""
        self._step_valid[running, k] = step.step_valid[running, 0]
        for row in np.flatnonzero(running).tolist():
            add_totals(self._totals[row], step.infos[row].get(NUMBERS, {}))
            self._left_out[row] = {**self._left_out[row], **step.infos[row].get(LEFT_OUT, {})}
        self._last = step if self._last is None else _merged(self._last, step, running)
        broken = running & step.infra_fault
        self._rewards[broken] = 0.0
        self._step_valid[broken] = False

    def pay(self, row: int, k: int, terms: dict[str, float]) -> None:
        """Add the terms of control step `k` of a row; their sum is its reward."""
        self._rewards[row, k] = sum(value for name, value in terms.items() if name != SIMULATOR)
        for name, value in terms.items():
            self._terms[row][name] = self._terms[row].get(name, 0.0) + value

    def merged(self) -> ChunkResult:
        """Return the chunk."""
        last = self._last
        assert last is not None  # at least one control step
        infos = []
        for row, info in enumerate(last.infos):
            sums = {NUMBERS: self._totals[row], TERMS: self._terms[row], LEFT_OUT: self._left_out[row]}
            is_whole = not last.infra_fault[row]
            infos.append({**info, **{key: value for key, value in sums.items() if value and is_whole}})
        return ChunkResult(
            *(last.frames, self._rewards, self._step_valid, last.terminated, last.truncated, last.success),
            *(last.q_score, last.infra_fault, tuple(infos)),
        )


def _merged(before: ChunkResult, step: ChunkResult, rows: np.ndarray) -> ChunkResult:
    """Return `before` with all but rewards of these rows (bool [B]) from a later control step."""
    index = np.flatnonzero(rows)
    infos = tuple(later if on else info for on, info, later in zip(rows, before.infos, step.infos, strict=True))

    def newest(name: str) -> np.ndarray:
        return np.where(rows, getattr(step, name), getattr(before, name))

    return ChunkResult(
        *(before.frames.replaced(index, step.frames.rows(index)), before.rewards, before.step_valid),
        *(newest("terminated"), newest("truncated"), newest("success"), newest("q_score"), newest("infra_fault")),
        infos,
    )


def _observation(frames: Frames, at: int) -> dict[str, Any]:
    """Return what a policy would see: images uint8 [N, H, W, 3], proprio float32 [P] and the instruction."""
    images = _read_only(frames.images[at])
    return {"images": images, "proprio": _read_only(frames.proprio[at]), "instruction": frames.instructions[at]}


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that refuses writing: the policy gets the same numbers."""
    view = array.view()
    view.flags.writeable = False
    return view


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]


def _source_of(function: Any) -> tuple[str, int]:
    """Return file and line of a function; ("", 0): unknown."""
    try:
        whole = inspect.unwrap(function)
        return str(inspect.getsourcefile(whole) or ""), inspect.getsourcelines(whole)[1]
    except (TypeError, OSError, ValueError):
        return "", 0


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _place(error: Exception, file: str | None) -> str:
    """Return the line of `file` that an error came from, else the line that raised it. Example: " (terms.py:12)"."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or frames
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
