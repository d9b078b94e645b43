"""Collects training steps from the rows of an env worker's simulator.

It is a generator: it yields an `Observation` and is sent an `ActionChunk`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from rlrun.algorithms.spec import rollout_rule
from rlrun.config.schema import RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.observations import Observation
from rlrun.edges.reports import EpisodeReport, GroupTally
from rlrun.edges.seeds import episode_seeds, sampling_keys
from rlrun.edges.starts import EpisodeStart, starts_of
from rlrun.edges.tally import StepTally
from rlrun.edges.trajectories import Trajectory
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.observability.timeline import CallProfile
from rlrun.system.telemetry import Telemetry
from rlrun.workers.group_filter import GroupFilter


class TrajectoryBuilder:
    """Holds T x B arrays, allocated once. Rows without an action in a chunk step stay invalid."""

    def __init__(self, num_chunk_steps: int, num_envs: int, has_next_proprio: bool = False):
        self._shape = (num_chunk_steps, num_envs)
        self._has_next_proprio = has_next_proprio
        numbers: dict[str, type] = {"instruction_index": np.int16, "policy_version": np.int32, "valid": bool}
        numbers |= {"values": np.float32, "next_values": np.float32}
        self._arrays: dict[str, np.ndarray] = {name: np.zeros(self._shape, dtype) for name, dtype in numbers.items()}
        self._instructions: dict[str, int] = {}
        self._num_cleared_steps = 0  # control steps that were executed and cleared

    def _array(self, name: str, like: np.ndarray) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = np.zeros(self._shape + like.shape[1:], like.dtype)
        return self._arrays[name]

    def add(self, t: int, rows: np.ndarray, frames: Frames, chunk: ActionChunk, result: ChunkResult) -> None:
        """Store chunk step `t` of `rows` (int [R], ascending); frames and chunk have R rows, result has all B."""
        held: slice | np.ndarray = slice(None) if len(rows) == self._shape[1] else rows  # a slice is copied faster
        index = [self._instructions.setdefault(text, len(self._instructions)) for text in frames.instructions]
        for name, of_rows in (
            ("images", frames.images),
            ("proprio", frames.proprio),
            ("tokens", chunk.tokens),
            ("logprobs", chunk.logprobs),
        ):
            self._array(name, of_rows)[t, held] = of_rows
        of_result = {name: getattr(result, name) for name in ("rewards", "step_valid", "terminated", "truncated")}
        of_result |= {"next_proprio": result.frames.proprio} if self._has_next_proprio else {}
        for name, of_all in of_result.items():
            self._array(name, of_all)[t, held] = of_all[held]
        self._arrays["instruction_index"][t, held] = index
        self._arrays["policy_version"][t, held] = chunk.policy_version
        self._arrays["valid"][t, held] = ~result.infra_fault[held]

    def set_values(self, t: int, values: np.ndarray) -> None:
        """Store the values of all rows' observations before chunk step `t`: float32 [B]."""
        self._arrays["values"][t] = values

    def set_next_values(self, t: int, rows: np.ndarray | slice, values: np.ndarray) -> None:
        """Store the values of the observations after chunk step `t` in `rows`."""
        self._arrays["next_values"][t, rows] = values

    def void(self, row: int, start: int, end: int) -> None:
        """Exclude chunk steps start..end-1 of a row from learning, after an infra fault."""
        self._arrays["valid"][start:end, row] = False

    def clear(self, rows: np.ndarray, start: int, end: int) -> None:
        """Forget chunk steps start..end-1 of `rows` (int [R]), which are collected again; their steps still count."""
        self._num_cleared_steps += int(self._arrays["step_valid"][start:end, rows].sum())
        for array in self._arrays.values():
            array[start:end, rows] = 0

    @property
    def num_control_steps(self) -> int:
        """Return the number of control steps executed so far."""
        return int(self._arrays["step_valid"].sum()) + self._num_cleared_steps

    @property
    def policy_version(self) -> int:
        """Return the oldest policy version that chose an executed action."""
        return int(self._arrays["policy_version"][self._arrays["step_valid"].any(-1)].min())

    def shards(self, first_env: int, envs_per_rank: int, group_size: int) -> dict[int, Trajectory]:
        """Return shards by actor rank, for ranks with rows here; rank r owns `envs_per_rank` envs from r times that."""
        envs = first_env + np.arange(self._shape[1])
        owners = envs // envs_per_rank
        rows = {int(rank): np.flatnonzero(owners == rank) for rank in np.unique(owners)}
        return {rank: self._shard(held, envs[held] // group_size) for rank, held in rows.items()}

    def _shard(self, rows: np.ndarray, group: np.ndarray) -> Trajectory:
        held: slice | np.ndarray = slice(None) if len(rows) == self._shape[1] else rows  # a slice avoids a copy
        chosen = {name: np.ascontiguousarray(array[:, held]) for name, array in self._arrays.items()}
        return Trajectory(instructions=tuple(self._instructions), group=group.astype(np.int32), **chosen)


def concatenate(parts: list[Trajectory]) -> Trajectory:
    """Join trajectories of equal T along the env axis (the shards of one actor rank)."""
    if len(parts) == 1:
        return parts[0]
    sentences = {text: i for i, text in enumerate(dict.fromkeys(t for part in parts for t in part.instructions))}
    joined: dict[str, Any] = {}
    for name in Trajectory.__dataclass_fields__:
        if name == "instructions":
            joined[name] = tuple(sentences)
        elif name == "instruction_index":
            maps = [np.array([sentences[text] for text in part.instructions], np.int16) for part in parts]
            joined[name] = np.concatenate([m[p.instruction_index] for m, p in zip(maps, parts, strict=True)], axis=1)
        elif getattr(parts[0], name) is None:
            joined[name] = None
        else:
            axis = 0 if name == "group" else 1
            joined[name] = np.concatenate([getattr(part, name) for part in parts], axis=axis)
    return Trajectory(**joined)


CollectedEpisodes = tuple[list[EpisodeReport], TrajectoryBuilder]


class Collector:
    """Collects rollout epochs. Each one resets all rows, unless `algorithm.carry_episodes` continues their episodes."""

    def __init__(
        self, config: RunConfig, rank: int, envs: np.ndarray, env: Callable[[], RestartingEnv], telemetry: Telemetry
    ):
        """rank: of the env worker. envs: global indices of its rows. env: returns the running simulator."""
        self._config = config
        self._rank = rank
        self._envs = envs
        self._env = env
        self._telemetry = telemetry
        self.rule = rollout_rule(config.algorithm)
        self.profile: CallProfile | None = None  # of the simulator's calls in the present training step
        self._running: tuple[EpisodeLedger, Frames] | None = None  # episodes that the next epoch continues
        self._starts: list[EpisodeStart] = []  # of episodes that began since the last call of `drain_starts`
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
        self._starts += starts_of(frames, seeds)
        return frames

    def drain_starts(self) -> list[EpisodeStart]:
        """Return the starts of the episodes that began since the last call."""
        starts = self._starts
        self._starts = []
        return starts

    def drain_groups(self) -> GroupTally | None:
        """Return the tally of groups since the last call; None: groups are not filtered."""
        return None if self._filter is None else self._filter.drain()

    def step(self, rows: np.ndarray, actions: np.ndarray) -> ChunkResult:
        """Simulate one chunk in `rows` (int [R]); actions: float32 [R, C, A]. Other rows do not change."""
        active = np.zeros(len(self._envs), bool)
        active[rows] = True
        all_actions = np.zeros((len(self._envs),) + actions.shape[1:], np.float32)
        all_actions[rows] = actions
        began = time.monotonic()
        with self._telemetry.span("simulate"), self._profiled():
            result = self._env().step_chunk(all_actions, active)
        self._telemetry.count("simulated_us", round(1e6 * (time.monotonic() - began)))
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
        algorithm = self._config.algorithm
        num_chunk_steps = algorithm.rollout_epochs * algorithm.horizon
        builder = TrajectoryBuilder(num_chunk_steps, len(self._envs), self.rule.needs_next_proprio)
        episodes: list[EpisodeReport] = []
        rows = np.arange(len(self._envs))
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
        start = epoch * self._config.algorithm.horizon
        rows = np.arange(len(self._envs))
        end = start + self._config.algorithm.horizon
        episodes: list[EpisodeReport] = []
        for repetition in range(self._config.algorithm.filter_groups.max_num_gen_batches):
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
        algorithm = self._config.algorithm
        rule = self.rule
        temperature = self._config.rollout.temperature
        groups = self._envs // rule.group_size  # rows of one group have the same reset seeds
        running = self._running
        self._running = None

        def seeds_of(rows: np.ndarray) -> np.ndarray:
            return episode_seeds(self._config.seed, step, epoch, groups[rows], ledger.count[rows])

        if running is not None:
            ledger, frames = running
            ledger.begin_epoch()
        else:
            ledger = EpisodeLedger(self._envs, repetition)
            frames = self._reset(ledger, rows, seeds_of(rows))
        start = epoch * algorithm.horizon
        end = start + algorithm.horizon
        moments = start + np.arange(algorithm.horizon + 1)
        keyed = moments[:, None] + repetition * len(moments)
        keys_TB = sampling_keys(self._config.seed, step, epoch, self._envs, keyed)
        requests = ValueRequests(builder) if rule.needs_values else None
        for t in range(start, end + 1):
            is_last = t == end  # one more request, for the values of the last observations
            if rows.size == 0 or (is_last and not requests):
                break
            acts_in_all = rows.size == len(frames)  # a reset returns the frames of its rows alone
            perceived = frames if acts_in_all else frames.rows(rows)
            keys = keys_TB[t - start, rows]
            others = requests.frames() if requests else None
            chunk = yield Observation(self._rank, perceived, keys, temperature, others, policy_version=policy_version)
            if requests:
                requests.record_action(t, chunk, is_last)
            if is_last:
                break
            result = self.step(rows, chunk.actions)
            builder.add(t, rows, perceived, chunk, result)
            self.tally.add(rows, perceived, chunk.actions, result)
            for row in np.flatnonzero(result.infra_fault).tolist():
                builder.void(row, start + ledger.started_at[row], t + 1)
            ledger.add(result)
            if requests:
                requests.record_result(result, t + 1 == end)
            over = rows[result.ended[rows]]
            frames = result.frames
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
        frames = self.reset(rows, seeds)
        ledger.assign(rows, seeds, frames.instructions)
        return frames


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
        self.length[rows] = 0

    def add(self, result: ChunkResult) -> None:
        """Add the result of one chunk and report the episodes that it ended."""
        self._return += result.rewards.sum(axis=1)
        self.length += result.step_valid.sum(axis=1)
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
        requests.record_action(t, chunk, is_last)
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

    def record_action(self, t: int, chunk: ActionChunk, is_last: bool) -> None:
        """Store the policy's values at moment `t`. is_last: `t` is after the last chunk step of the epoch."""
        if self._goes_on is not None:
            self._builder.set_next_values(t - 1, slice(None), np.where(self._goes_on, chunk.values, 0.0))
        if self._cut_off is not None:
            assert chunk.final_values is not None  # the request had final frames
            self._builder.set_next_values(t - 1, self._cut_off[0], chunk.final_values)
        if not is_last:
            self._builder.set_values(t, chunk.values)

    def record_result(self, result: ChunkResult, is_last: bool) -> None:
        """Take the result of a chunk step. is_last: it ends the epoch; the next request has every row's last frames."""
        is_cut_off = result.truncated & ~result.infra_fault
        self._goes_on = ~result.ended | is_cut_off if is_last else ~result.ended
        cut_off = np.flatnonzero(is_cut_off)
        self._cut_off = (cut_off, result.frames.rows(cut_off)) if cut_off.size and not is_last else None
