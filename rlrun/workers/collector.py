"""Collects training steps from the rows of an env worker's simulator.

It is a generator: it yields an `Observation` and is sent an `ActionChunk`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np

from rlrun.algorithms.spec import rollout_rule
from rlrun.config.schema import RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.episode_numbers import LEFT_OUT, EpisodeNumbers, has_numbers
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.observations import Observation
from rlrun.edges.reports import EpisodeReport, GroupTally
from rlrun.edges.seeds import episode_seeds, epoch_keys
from rlrun.edges.starts import EpisodeStart, starts_of
from rlrun.edges.tally import StepTally
from rlrun.edges.trajectories import TrajectoryBuilder
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.observability.timeline import CallProfile
from rlrun.system.telemetry import Telemetry
from rlrun.workers.group_filter import GroupFilter
from rlrun.workers.late_actions import LateActions

CollectedEpisodes = tuple[list[EpisodeReport], TrajectoryBuilder]
SeedsOf = Callable[["EpisodeLedger", np.ndarray], np.ndarray]  # of rows (int [R]), by their episodes so far


class Collector:
    """Collects rollout epochs. Each one resets all rows, unless `algorithm.carry_episodes` continues their episodes."""

    def __init__(
        self, config: RunConfig, rank: int, envs: np.ndarray, env: Callable[[], RestartingEnv], telemetry: Telemetry
    ):
        """rank: of the env worker. envs: global indices of its rows. env: returns the running simulator."""
        self.config = config
        self.rank = rank
        self.envs = envs
        self._env = env
        self._telemetry = telemetry
        self.rule = rollout_rule(config.algorithm)
        self.profile: CallProfile | None = None  # of the simulator's calls in the present training step
        self.late = LateActions(config.env.action_delay, len(envs))  # of the rows of the running simulator
        self._running: tuple[EpisodeLedger, Frames] | None = None  # episodes that the next epoch continues
        self._starts: list[EpisodeStart] = []  # of episodes that began since the last call of `drain_starts`
        self._left_out: dict[str, str] = {}  # names in the world's info that are no metrics, and why
        is_filtered = config.algorithm.filter_groups.enable
        self._filter = GroupFilter(config.algorithm.filter_groups, envs, self.rule.group_size) if is_filtered else None

    @cached_property
    def tally(self) -> StepTally:
        """The tally of the present training step; it needs the limits of the running simulator."""
        return StepTally(*self._env().spaces.limits)

    def reset(self, rows: np.ndarray, seeds: np.ndarray) -> Frames:
        """Start new episodes in `rows` (int [R]) with `seeds` (int [R])."""
        with self._telemetry.span("reset"), self._profiled():
            frames = self._env().reset(rows, seeds)
        self.late.begin(rows)
        self._starts += starts_of(frames, seeds)
        return frames

    def drain_starts(self) -> list[EpisodeStart]:
        """Return the starts of the episodes that began since the last call."""
        starts = self._starts
        self._starts = []
        return starts

    def drain_left_out(self) -> dict[str, str]:
        """Return what the world's info has since the last call that cannot be a metric, and why, by name."""
        left_out = self._left_out
        self._left_out = {}
        return left_out

    def drain_groups(self) -> GroupTally | None:
        """Return the tally of groups since the last call; None: groups are not filtered."""
        return None if self._filter is None else self._filter.drain()

    def step(self, rows: np.ndarray, chunk: ActionChunk) -> ChunkResult:
        """Simulate one chunk in `rows` (int [R]), one of its rows each. Other rows do not change."""
        return self.late.step(rows, chunk.actions, self._simulate, chunk.further)

    def _simulate(self, rows: np.ndarray, actions: np.ndarray) -> ChunkResult:
        active = np.zeros(len(self.envs), bool)
        active[rows] = True
        all_actions = np.zeros((len(self.envs),) + actions.shape[1:], np.float32)
        all_actions[rows] = actions
        began = time.monotonic()
        with self._telemetry.span("simulate"), self._profiled():
            result = self._env().step_chunk(all_actions, active)
        for info in result.infos:
            self._left_out.update(info.get(LEFT_OUT, ()))
        self._telemetry.count("simulated_us", round(1e6 * (time.monotonic() - began)))
        self._telemetry.count("simulations", 1)
        self._telemetry.count("chunk_steps", rows.size)
        self._telemetry.count("env_steps", int(result.step_valid.sum()))
        return result

    def _profiled(self) -> AbstractContextManager[None]:
        return nullcontext() if self.profile is None else self.profile.running()

    def forget(self) -> None:
        """Drop the running episodes, because the rows were used for something else."""
        self._running = None

    def collect(self, step: int, policy_version: int = 0) -> Generator[Observation, ActionChunk, CollectedEpisodes]:
        """Collect `rollout_epochs` x `horizon` chunk steps for training step `step`.

        policy_version: the oldest that may choose actions.
        """
        algorithm = self.config.algorithm
        num_chunk_steps = algorithm.rollout_epochs * algorithm.horizon
        builder = TrajectoryBuilder(num_chunk_steps, len(self.envs), self.rule.needs_next_proprio)
        episodes: list[EpisodeReport] = []
        rows = np.arange(len(self.envs))
        for epoch in range(algorithm.rollout_epochs):
            if self._filter is None:
                episodes += yield from self._epoch(step, epoch, policy_version, builder, rows)
            else:
                episodes += yield from self._filtered_epoch(self._filter, step, epoch, policy_version, builder)
        return episodes, builder

    def _filtered_epoch(
        self, group_filter: GroupFilter, step: int, epoch: int, policy_version: int, builder: TrajectoryBuilder
    ) -> Generator[Observation, ActionChunk, list[EpisodeReport]]:
        """Collect one rollout epoch, and the rows of groups without signal again, with new seeds."""
        start = epoch * self.config.algorithm.horizon
        rows = np.arange(len(self.envs))
        end = start + self.config.algorithm.horizon
        episodes: list[EpisodeReport] = []
        for repetition in range(self.config.algorithm.filter_groups.max_num_gen_batches):
            if repetition:
                builder.clear(rows, start, end)
            found = yield from self._epoch(step, epoch, policy_version, builder, rows, repetition)
            episodes += found
            rows = group_filter.without_signal(found, repetition)
            if not rows.size:
                break
        group_filter.leave_out(rows)
        for row in rows.tolist():
            builder.void(row, start, end)
        return episodes

    def _epoch(
        self,
        step: int,
        epoch: int,
        policy_version: int,
        builder: TrajectoryBuilder,
        rows: np.ndarray,
        repetition: int = 0,
    ) -> Generator[Observation, ActionChunk, list[EpisodeReport]]:
        """Collect one rollout epoch of `rows` (int [R]). repetition: how often it was collected before."""
        running = RolloutEpoch(self, step, epoch, builder, rows, repetition)
        for t in range(running.start, running.end + 1):
            is_last = t == running.end  # one more request, for the values of the last observations
            if running.rows.size == 0 or (is_last and running.requests is None):
                break
            asked = running.observation(t, policy_version)
            chunk = yield asked
            if running.requests is not None:
                running.requests.record_action(t, chunk)
            if not is_last:
                running.take(t, asked, chunk)
        return running.finish()

    def begin(self, rows: np.ndarray, repetition: int, seeds_of: SeedsOf) -> tuple[EpisodeLedger, Frames]:
        """Return the ledger and frames with which a rollout epoch begins: those of running episodes, or new ones."""
        if self._running is not None:
            ledger, frames = self._running
            self._running = None
            ledger.begin_epoch()
            return ledger, frames
        ledger = EpisodeLedger(self.envs, repetition)
        return ledger, self.restart(ledger, rows, seeds_of(ledger, rows))

    def carry(self, ledger: EpisodeLedger, frames: Frames) -> None:
        """Let the next rollout epoch continue the running episodes."""
        self._running = (ledger, frames)

    def restart(self, ledger: EpisodeLedger, rows: np.ndarray, seeds: np.ndarray) -> Frames:
        """Begin the episodes of `seeds` in `rows`, one each. Returns their frames."""
        frames = self.reset(rows, seeds)
        ledger.assign(rows, seeds, frames.instructions)
        return frames


class RolloutEpoch:
    """A rollout epoch that is being collected: the rows that act, and what they see."""

    def __init__(
        self,
        collector: Collector,
        step: int,
        epoch: int,
        builder: TrajectoryBuilder,
        rows: np.ndarray,
        repetition: int,
    ):
        self._collector = collector
        self._builder = builder
        self._rule = collector.rule
        self._algorithm = collector.config.algorithm
        self._place = (collector.config.seed, step, epoch)
        self._groups = collector.envs // self._rule.group_size  # rows of one group have the same reset seeds
        horizon = self._algorithm.horizon
        self.rows = rows  # int [R], those that act
        self.start = epoch * horizon
        self.end = self.start + horizon
        self.requests = ValueRequests(builder) if self._rule.needs_values else None
        self._keys = epoch_keys(*self._place, collector.envs, horizon, repetition)
        self._ledger, self._frames = collector.begin(rows, repetition, self._seeds)
        self._over = rows[:0]  # rows whose episodes the last chunk step ended

    def _seeds(self, ledger: EpisodeLedger, rows: np.ndarray) -> np.ndarray:
        return episode_seeds(*self._place, self._groups[rows], ledger.count[rows])

    def observation(self, t: int, policy_version: int) -> Observation:
        """Return what the policy is asked at moment `t`."""
        acts_in_all = self.rows.size == len(self._frames)  # a reset returns the frames of its rows alone
        perceived = self._frames if acts_in_all else self._frames.rows(self.rows)
        others = None if self.requests is None else self.requests.frames()
        temperature = self._collector.config.rollout.temperature
        keys = self._keys[t - self.start, self.rows]
        return Observation(self._collector.rank, perceived, keys, temperature, others, policy_version=policy_version)

    def take(self, t: int, asked: Observation, chunk: ActionChunk) -> None:
        """Simulate the answer at moment `t`, and go on to the next one."""
        rows = self.rows
        result = self._collector.step(rows, chunk)
        self._builder.add(t, rows, asked, chunk, result)
        self._collector.tally.add(rows, asked.frames, chunk.actions, result)
        for row in np.flatnonzero(result.infra_fault).tolist():
            self._builder.void(row, self.start + self._ledger.started_at[row], t + 1)
        self._ledger.add(result)
        if self.requests is not None:
            self.requests.record_result(result, t + 1 == self.end)
        self._over = rows[result.ended[rows]]
        self._frames = result.frames
        if self._rule.one_episode:
            self.rows = rows[~result.ended[rows]]
        elif t + 1 == self.end:  # no resets at the end; the last request shows the final frames if values are needed
            broken = np.flatnonzero(result.infra_fault)
            if broken.size:
                self._frames = self._frames.replaced(broken, asked.frames.rows(broken))
        elif self._over.size:
            self._restart(t + 1 - self.start)

    def _restart(self, chunk_step: int) -> None:
        """Begin new episodes in the rows whose last ones are over."""
        self._ledger.start(self._over, chunk_step)
        fresh = self._collector.restart(self._ledger, self._over, self._seeds(self._ledger, self._over))
        self._frames = self._frames.replaced(self._over, fresh)

    def finish(self) -> list[EpisodeReport]:
        """Return the episodes that ended."""
        algorithm = self._algorithm
        if algorithm.carry_episodes:
            if self._over.size:
                self._restart(algorithm.horizon)
            self._collector.carry(self._ledger, self._frames)
            return self._ledger.reports
        if self._rule.one_episode:
            return self._ledger.reports
        return self._ledger.countable(algorithm.horizon, self._collector.config.chunks_of_episode)


class EpisodeLedger:
    """Keeps per row: seed, return, length, and the chunk step of the epoch at which the episode started."""

    def __init__(self, envs: np.ndarray, first: int = 0):
        """first: number of the first episode of each row, on which its seed depends."""
        self._envs = envs  # global env index of each row
        num_rows = len(envs)
        self.seeds = np.zeros(num_rows, np.int64)
        self.instructions = [""] * num_rows
        self.count = np.full(num_rows, first, np.int64)  # number of the running episode
        self.started_at = np.zeros(num_rows, int)
        self.reports: list[EpisodeReport] = []
        self.last: dict[int, EpisodeReport] = {}  # by row
        self._starts: list[int] = []  # started_at of each report
        self._return = np.zeros(num_rows)
        self._numbers: dict[int, EpisodeNumbers] = {}  # of the running episodes, by row
        self.length = np.zeros(num_rows, int)

    def begin_epoch(self) -> None:
        """Begin a new epoch: running episodes continue, reports of the last epoch are dropped."""
        self.reports = []
        self._starts = []
        self.started_at[:] = 0

    def assign(self, rows: np.ndarray, seeds: np.ndarray, instructions: Sequence[str]) -> None:
        """Set the reset seed and the instruction of the episodes that `rows` run, one of each per row."""
        self.seeds[rows] = seeds
        for row, instruction in zip(rows.tolist(), instructions, strict=True):
            self.instructions[row] = instruction

    def start(self, rows: np.ndarray, chunk_step: int) -> None:
        """Begin a new episode in `rows`, to which the caller assigns seed and instruction."""
        self.count[rows] += 1
        self.started_at[rows] = chunk_step
        self._return[rows] = 0.0
        for row in rows.tolist() if self._numbers else ():
            self._numbers.pop(row, None)
        self.length[rows] = 0

    def add(self, result: ChunkResult) -> None:
        """Add the result of one chunk and report the episodes that it ended."""
        self._return += result.rewards.sum(axis=1)
        self.length += result.step_valid.sum(axis=1)
        for row, info in enumerate(result.infos):
            if has_numbers(info):
                self._numbers.setdefault(row, EpisodeNumbers()).add(info)
        for row in np.flatnonzero(result.ended).tolist():
            self.last[row] = EpisodeReport(
                env=int(self._envs[row]),
                seed=int(self.seeds[row]),
                success=bool(result.success[row]),
                q_score=float(result.q_score[row]),
                episode_return=float(self._return[row]),
                num_control_steps=int(self.length[row]),
                terminated=bool(result.terminated[row]),
                truncated=bool(result.truncated[row]),
                infra_fault=bool(result.infra_fault[row]),
                instruction=self.instructions[row],
                numbers=self._numbers[row].report() if row in self._numbers else {},
            )
            self.reports.append(self.last[row])
            self._starts.append(int(self.started_at[row]))

    def countable(self, horizon: int, max_chunks: int) -> list[EpisodeReport]:
        """Return the reports of episodes that had enough time to reach their time limit.

        Episodes that start late in the epoch finish only if they are short, as successes are; counting them would raise
        the success rate. If no episode had enough time, all are returned.
        """
        roomy = [r for r, start in zip(self.reports, self._starts, strict=True) if start + max_chunks <= horizon]
        return roomy or self.reports


class ValueRequests:
    """The value requests of one rollout epoch in which all rows act in every chunk step.

    Example, at moment `t` (after the last chunk step `is_last`)::

        chunk = yield Observation(…, final_frames=requests.frames())
        requests.record_action(t, chunk)
        …
        requests.record_result(result, is_last)
    """

    def __init__(self, builder: TrajectoryBuilder):
        self._builder = builder
        self._goes_on: np.ndarray | None = None  # bool [B]: rows whose next value is that of the next observation
        self._cut_off: tuple[np.ndarray, Frames] | None = None  # rows truncated by the last chunk step

    def frames(self) -> Frames | None:
        """Return the final frames whose values are needed in addition; None if there are none."""
        return None if self._cut_off is None else self._cut_off[1]

    def record_action(self, t: int, chunk: ActionChunk) -> None:
        """Store the policy's values at moment `t` as those of the next observations of the chunk step before."""
        if self._goes_on is not None:
            self._builder.set_next_values(t - 1, slice(None), np.where(self._goes_on, chunk.values, 0.0))
        if self._cut_off is not None:
            assert chunk.final_values is not None  # the request had final frames
            self._builder.set_next_values(t - 1, self._cut_off[0], chunk.final_values)

    def record_result(self, result: ChunkResult, is_last: bool) -> None:
        """Take the result of a chunk step. is_last: it ends the epoch; the next request has every row's last frames."""
        is_cut_off = result.truncated & ~result.infra_fault
        self._goes_on = ~result.ended | is_cut_off if is_last else ~result.ended
        cut_off = np.flatnonzero(is_cut_off)
        self._cut_off = (cut_off, result.frames.rows(cut_off)) if cut_off.size and not is_last else None
