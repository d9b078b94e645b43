"""Whole episodes by random actions: the speed of a simulator, and what a learning run would be told of its world."""

from __future__ import annotations

import time

import numpy as np

from rlrun.edges.episode_numbers import NUMBERS, TERMS
from rlrun.edges.frames import ChunkResult
from rlrun.edges.starts import TRAINING_SEEDS
from rlrun.edges.tally import StepTally
from rlrun.testing.simulators import ALL, CHUNK, NUM_ENVS, EnvUnderTest
from rlrun.workers.world_facts import WorldFacts

NUM_CHUNK_STEPS = 200  # at least
# at least, for the rate; and at most
SECONDS = 3.0
LONGEST_S = 60.0
# before a fact is told
_FACT_EPISODES = NUM_ENVS
_FACT_CHUNK_STEPS = NUM_CHUNK_STEPS // 2


class RandomPlay:
    """The episodes of a simulator under its own time limit.

    Example::

        play = RandomPlay(EnvUnderTest(config.env, make, make()))
        play.run()
        print(play.steps_per_s, play.facts())
    """

    def __init__(self, subject: EnvUnderTest):
        self._subject = subject
        self._env = subject.env
        self._tally = StepTally(*self._env.spaces.limits)
        self._random = np.random.default_rng(0)
        self._reset_s = self._step_s = 0.0
        self._num_resets = self._num_chunk_steps = self._num_steps = 0
        # of the running episodes
        self._lengths = np.zeros(NUM_ENVS, int)
        self._returns = np.zeros(NUM_ENVS)
        self._is_over = np.ones(NUM_ENVS, bool)
        self._ended: list[tuple[int, float]] = []  # length and return of each episode that has ended
        self._has_success = False
        self._terms: dict[str, list[float]] = {}  # of an own reward: one number per chunk and row
        self._named: set[str] = set()  # numbers of the world's info

    def run(self) -> None:
        """Play for a while. What is loaded at the first reset and step does not count."""
        frames = self._env.reset(ALL, ALL)
        self._env.step_chunk(self._actions())
        while self._goes_on():
            rows = np.flatnonzero(self._is_over)
            started = time.monotonic()
            if rows.size:
                frames = frames.replaced(rows, self._env.reset(rows, TRAINING_SEEDS.start + self._num_resets + rows))
            reset_at = time.monotonic()
            actions = self._actions()
            result = self._env.step_chunk(actions)
            self._reset_s += reset_at - started
            self._step_s += time.monotonic() - reset_at
            self._num_resets += rows.size
            self._tally.add(ALL, frames, actions, result)
            self._add(result)
            frames = result.frames

    def _goes_on(self) -> bool:
        seconds = self._reset_s + self._step_s
        return seconds < SECONDS or (self._num_chunk_steps < NUM_CHUNK_STEPS and seconds < LONGEST_S)

    def _actions(self) -> np.ndarray:
        low, high = self._subject.limits()
        return self._random.uniform(low, high, (NUM_ENVS, CHUNK, self._env.spaces.num_actions)).astype(np.float32)

    def _add(self, result: ChunkResult) -> None:
        """Count a chunk of all rows; episodes with an infra fault are void."""
        lengths = result.step_valid.sum(axis=1)
        self._is_over = result.ended
        self._num_chunk_steps += NUM_ENVS
        self._num_steps += int(lengths.sum())
        self._lengths += lengths
        self._returns += result.rewards.sum(axis=1)
        for info in result.infos:
            self._named |= set(info.get(NUMBERS, ()))
            for name, value in info.get(TERMS, {}).items():
                self._terms.setdefault(name, []).append(value)
        over = self._is_over & ~result.infra_fault
        self._has_success |= bool(result.success[over].any())
        self._ended += zip(self._lengths[over].tolist(), self._returns[over].tolist(), strict=True)
        self._lengths[self._is_over] = self._returns[self._is_over] = 0

    @property
    def steps_per_s(self) -> float:
        """Control steps per second, resets and frames included."""
        return self._num_steps / (self._reset_s + self._step_s)

    def terms(self) -> list[str]:
        """Return a sentence on each term of an own reward; [] without one."""
        return [
            f"reward/{name} is {np.mean(values):.3g} a chunk ({min(values):.3g} to {max(values):.3g})"
            + (", always the same" if min(values) == max(values) else "")
            for name, values in self._terms.items()
        ]

    def info(self) -> list[str]:
        """Return a sentence on the numbers of the world's info, and on those that `env.info` names in vain."""
        missing = sorted(set(self._subject.config.info or ()) - self._named)
        found = [f"its info has the numbers {', '.join(sorted(self._named))}"] if self._named else []
        return found + ([f"env.info names {', '.join(missing)}, which its info has not"] if missing else [])

    def facts(self) -> list[str]:
        """Return symptoms that a learning run seldom has, a sentence each."""
        facts = WorldFacts(_FACT_EPISODES, _FACT_CHUNK_STEPS)
        unpaid = [0.0] * int((~self._is_over & (self._returns == 0)).sum())  # episodes that go on, without a reward
        returns = [episode_return for _, episode_return in self._ended] + unpaid
        facts.add(returns, self._has_success, self._num_steps, [self._tally.drain()])
        return [sentence for _, sentence in facts.found(self._reset_share())]

    def _reset_share(self) -> float:
        """Return the share of the time that resets take; episodes that go on may last until the time limit."""
        num_running = int((~self._is_over).sum())
        lengths = [length for length, _ in self._ended] + [self._subject.config.max_control_steps] * num_running
        if not lengths or not self._num_steps:
            return 0.0
        reset_s = self._reset_s / self._num_resets
        episode_s = float(np.mean(lengths)) * self._step_s / self._num_steps
        return reset_s / max(1e-9, reset_s + episode_s)
