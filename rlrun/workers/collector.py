"""Collects training steps from the rows of an env worker's simulator.

It is a generator: it yields an `Observation` and is sent an `ActionChunk`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from rlrun.algorithms.spec import rollout_rule
from rlrun.config.schema import RunConfig
from rlrun.data.messages import ActionChunk, ChunkResult, EpisodeReport, Frames, Observation
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.observability.telemetry import Telemetry
from rlrun.workers.episodes import EpisodeLedger
from rlrun.workers.seeds import episode_seeds, sampling_keys
from rlrun.workers.trajectory_builder import TrajectoryBuilder
from rlrun.workers.value_questions import ValueQuestions

CollectedEpisodes = tuple[list[EpisodeReport], TrajectoryBuilder]


class Collector:
    """Collects rollout epochs. Each one resets all rows, unless `algorithm.carry_episodes` continues their episodes."""

    def __init__(
        self, config: RunConfig, rank: int, envs: np.ndarray, env: Callable[[], RestartingEnv], telemetry: Telemetry
    ):
        """rank: of the env worker. envs: global indices of its rows. env: returns the running simulator."""
        self._config, self._rank, self._envs = config, rank, envs
        self._env, self._telemetry = env, telemetry
        self._running: tuple[EpisodeLedger, Frames] | None = None  # episodes that the next epoch continues

    def reset(self, rows: np.ndarray, seeds: np.ndarray) -> Frames:
        """Start new episodes in `rows` (int [R]) with `seeds` (int [R])."""
        with self._telemetry.span("reset"):
            return self._env().reset(rows, seeds)

    def step(self, rows: np.ndarray, actions: np.ndarray) -> ChunkResult:
        """Simulate one chunk in `rows` (int [R]); actions: float32 [R, C, A]. Other rows do not change."""
        active = np.zeros(len(self._envs), bool)
        active[rows] = True
        all_actions = np.zeros((len(self._envs),) + actions.shape[1:], np.float32)
        all_actions[rows] = actions
        with self._telemetry.span("simulate"):
            result = self._env().step_chunk(all_actions, active)
        self._telemetry.count("chunk_steps", rows.size)
        self._telemetry.count("env_steps", int(result.step_valid.sum()))
        return result

    def forget(self) -> None:
        """Drop the running episodes, because the rows were used for something else."""
        self._running = None

    def collect(self, step: int, policy_version: int = 0) -> Generator[Observation, ActionChunk, CollectedEpisodes]:
        """Collect `rollout_epochs` x `horizon` chunk steps for training step `step`.

        policy_version: the oldest that may choose actions.
        """
        algorithm = self._config.algorithm
        builder = TrajectoryBuilder(algorithm.rollout_epochs * algorithm.horizon, len(self._envs))
        episodes: list[EpisodeReport] = []
        for epoch in range(algorithm.rollout_epochs):
            episodes += yield from self._epoch(step, epoch, policy_version, builder)
        return episodes, builder

    def _epoch(
        self, step: int, epoch: int, policy_version: int, builder: TrajectoryBuilder
    ) -> Generator[Observation, ActionChunk, list[EpisodeReport]]:
        algorithm = self._config.algorithm
        rule = rollout_rule(algorithm)
        temperature = self._config.rollout.temperature
        groups = self._envs // rule.group_size  # rows of one group have the same reset seeds
        rows = np.arange(len(self._envs))  # the rows that act
        running, self._running = self._running, None

        def seeds_of(rows: np.ndarray) -> np.ndarray:
            return episode_seeds(self._config.seed, step, epoch, groups[rows], ledger.count[rows])

        if running is not None:
            ledger, frames = running
            ledger.begin_epoch()
        else:
            ledger = EpisodeLedger(self._envs)
            frames = self._reset(ledger, rows, seeds_of(rows))
        start = epoch * algorithm.horizon
        end = start + algorithm.horizon
        moments = start + np.arange(algorithm.horizon + 1)
        keys_TB = sampling_keys(self._config.seed, step, epoch, self._envs, moments[:, None])
        questions = ValueQuestions(builder) if rule.needs_values else None
        for t in range(start, end + 1):
            is_last = t == end  # one more request, for the values of the last observations
            if rows.size == 0 or (is_last and not questions):
                break
            is_whole = rows.size == len(self._envs)
            perceived, keys = frames if is_whole else frames.rows(rows), keys_TB[t - start, rows]
            others = questions.frames() if questions else None
            chunk = yield Observation(self._rank, perceived, keys, temperature, others, policy_version=policy_version)
            if questions:
                questions.answered(t, chunk, is_last)
            if is_last:
                break
            result = self.step(rows, chunk.actions)
            builder.add(t, rows, perceived, chunk, result)
            for row in np.flatnonzero(result.infra_fault).tolist():
                builder.void(row, start + ledger.started_at[row], t + 1)
            ledger.add(result)
            if questions:
                questions.followed(result, t + 1 == end)
            over, frames = rows[result.ended[rows]], result.frames
            if rule.one_episode:
                rows = rows[~result.ended[rows]]
            elif t + 1 == end:  # no resets at the end; the last request shows the final frames if values are needed
                broken = np.flatnonzero(result.infra_fault)
                frames = frames.replaced(broken, perceived.rows(broken)) if broken.size else frames
            elif over.size:
                ledger.start(over, t + 1 - start)
                frames = frames.replaced(over, self._reset(ledger, over, seeds_of(over)))
        if algorithm.carry_episodes:
            if over.size:
                ledger.start(over, algorithm.horizon)
                frames = frames.replaced(over, self._reset(ledger, over, seeds_of(over)))
            self._running = (ledger, frames)
            return ledger.reports
        return ledger.reports if rule.one_episode else ledger.countable(algorithm.horizon, self._max_chunks)

    @property
    def _max_chunks(self) -> int:
        return -(-self._config.env.max_control_steps // self._config.policy.num_action_chunks)

    def _reset(self, ledger: EpisodeLedger, rows: np.ndarray, seeds: np.ndarray) -> Frames:
        ledger.seeds[rows] = seeds
        return self.reset(rows, seeds)
