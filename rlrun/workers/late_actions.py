"""Latency: actions that are executed some control steps after the observation that they were chosen for.

A robot does not stop while its policy computes. It goes on with the last actions of the chunk before, and begins the
new chunk when that has arrived. The first chunk of an episode is awaited: the episode begins with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rlrun.edges.frames import ChunkResult

Simulate = Callable[[np.ndarray, np.ndarray], ChunkResult]  # (rows [R], actions [R, C, A]) -> result of B rows


class LateActions:
    """The actions of each row that are still to come when the policy is asked.

    Example::

        late = LateActions(delay=2, num_rows=8)
        late.begin(rows)                            # after every reset
        result = late.step(rows, actions, simulate)
    """

    def __init__(self, delay: int, num_rows: int):
        """delay: control steps, less than a chunk has."""
        self._delay = delay
        # float32 [delay + M, A], the last M of which are only executed if the next chunk repeats them; None: an episode
        # begins
        self._rest: list[np.ndarray | None] = [None] * num_rows

    def begin(self, rows: np.ndarray) -> None:
        """Forget what was to come in rows (int [R]), whose episodes begin."""
        for row in rows.tolist():
            self._rest[row] = None

    def coming(self, rows: np.ndarray, num_actions: int) -> np.ndarray:
        """Return what rows (int [R]) would execute from now on, float32 [R, L, A]: 0 where an episode begins.

        num_actions: A. Rows that go on have equally many; L is 0 if none does.
        """
        rests = [self._rest[row] for row in rows.tolist()]
        num_coming = max((len(rest) for rest in rests if rest is not None), default=0)
        coming = np.zeros((len(rests), num_coming, num_actions), np.float32)
        for index, rest in enumerate(rests):
            if rest is not None:
                coming[index] = rest
        return coming

    def step(
        self, rows: np.ndarray, actions: np.ndarray, simulate: Simulate, further: np.ndarray | None = None
    ) -> ChunkResult:
        """Simulate the next C control steps of rows (int [R]). actions: float32 [R, C, A], those that arrive meanwhile.

        In the first chunk step of an episode C - delay control steps are simulated, and the others are not valid.
        further: float32 [R, M, A], planned after `actions`; they are for `coming` only. None: nothing is.
        """
        if further is None:
            further = actions[:, :0]
        if self._delay == 0:
            self._keep(rows, further)
            return simulate(rows, actions)
        at_once = actions.shape[1] - self._delay
        is_first = np.array([self._rest[row] is None for row in rows.tolist()], bool)
        going_on = [rest[: self._delay] for row in rows[~is_first].tolist() if (rest := self._rest[row]) is not None]
        self._keep(rows, np.concatenate([actions[:, at_once:], further], axis=1))
        results = []
        if is_first.any():
            begun = simulate(rows[is_first], actions[is_first, :at_once])
            results.append((rows[is_first], _padded(begun, self._delay)))
        if going_on:
            executed = np.concatenate([np.stack(going_on), actions[~is_first, :at_once]], axis=1)
            results.append((rows[~is_first], simulate(rows[~is_first], executed)))
        (_, whole), *others = results
        for own, result in others:
            whole = _with_rows(whole, own, result)
        return whole

    def _keep(self, rows: np.ndarray, rests: np.ndarray) -> None:
        for row, rest in zip(rows.tolist(), rests, strict=True):
            self._rest[row] = rest.copy()


def _padded(result: ChunkResult, num_steps: int) -> ChunkResult:
    """Return a result with further control steps, which were not simulated."""
    more = ((0, 0), (0, num_steps))
    return replace(result, rewards=np.pad(result.rewards, more), step_valid=np.pad(result.step_valid, more))


def _with_rows(result: ChunkResult, rows: np.ndarray, other: ChunkResult) -> ChunkResult:
    """Return a result with rows (int [R]) of another one."""
    arrays = {}
    for name in ("rewards", "step_valid", "terminated", "truncated", "success", "q_score", "infra_fault"):
        arrays[name] = getattr(result, name).copy()
        arrays[name][rows] = getattr(other, name)[rows]
    infos = list(result.infos)
    for row in rows.tolist():
        infos[row] = other.infos[row]
    frames = result.frames.replaced(rows, other.frames.rows(rows))
    return replace(result, frames=frames, infos=tuple(infos), **arrays)
