"""The env worker: steps simulators, asks the policy for chunks, builds trajectories.

Methods that need the policy are generators: they yield an `Observation` and are sent an `ActionChunk`. Both are
carried by a loop in one process, or by the channel between Ray processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import num_simulators
from rlrun.data.fit import short_name
from rlrun.data.lerobot import DemoFeatures
from rlrun.edges.actions import ActionChunk, AnswerCheck
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.reports import Collected, EpisodeReport, Evaluated, LeftOutEpisode
from rlrun.edges.seeds import actor_ranks_of, rollout_of, sampling_keys
from rlrun.edges.spaces import Spaces
from rlrun.edges.starts import EpisodeStart, starts_of
from rlrun.edges.world_sample import WorldSample
from rlrun.envs.make import make_env
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.envs.sampling import sample_world
from rlrun.envs.vector_env import NoPicture
from rlrun.observability.run_files import open_log
from rlrun.observability.timeline import CallProfile
from rlrun.system.telemetry import Telemetry
from rlrun.workers.collector import Collector, EpisodeLedger
from rlrun.workers.demo_recording import record_episodes, write_dataset
from rlrun.workers.late_actions import LateActions

Episodes = Generator[Observation, ActionChunk, tuple]

# pixels
VIDEO_HEIGHT = 240
VIDEO_WIDTH = 320
MAX_SHOTS = 150  # frames in the video of an episode, besides the last one
MAX_ATTEMPTS = 3  # at an evaluation episode; one that is void each time is left out


class EnvWorker:
    """Holds `env.num_envs / env.num_workers` envs, which every rollout epoch resets.

    A worker therefore has no state between steps, and neither resuming a run nor replacing a lost worker needs
    snapshots of simulators (docs/decisions.md). With `algorithm.carry_episodes` running episodes continue instead, and
    an evaluation between two steps has a simulator of its own; those cut off by a loss or a resume are never finished.
    """

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry, python: str | None = None):
        """python: the simulator's interpreter; None: this one."""
        self.config = config
        self._python = python
        self.rank = rank
        self.telemetry = telemetry
        self._num_envs = config.env.num_envs // config.env.num_workers
        self._envs = rank * self._num_envs + np.arange(self._num_envs)  # global indices of the rows
        self.actor_ranks = actor_ranks_of(rank, config.env.num_workers, config.actor.num_workers)  # own rows here
        self._env: RestartingEnv | None = None
        self._evaluation_env: RestartingEnv | None = None  # None: evaluations use `_env`
        self._check_answer: AnswerCheck | None = None  # made with the simulator
        self._no_video = ""  # why the simulator cannot be recorded; "": it can, or nobody asked
        self._envs_per_rank = config.env.num_envs // config.actor.num_workers
        self._collector = Collector(config, rank, self._envs, lambda: self.env, telemetry)

    def load(self, shown: tuple[int, ...] | None = None) -> Spaces:
        """Start the simulator unless it runs. Returns its spaces, with all of its cameras.

        shown: see `show`; None: all cameras of the simulator, in its order.
        """
        if self._env is None:
            with self.telemetry.span("load"):
                loaded = partial(self.telemetry.count, "loaded_parts")
                make = partial(make_env, self.config.env, self._num_envs, loaded, self._python)
                limits = self.config.env.restart_limit, self.config.env.max_abs_reward
                start = partial(RestartingEnv, make, *limits, log_path=open_log, worker=self.telemetry.worker)
                self._env = start()
                if num_simulators(self.config) > 1:
                    self._evaluation_env = start()
            rollout = rollout_of(self.rank, self.config.env.num_workers, self.config.rollout.num_workers)
            num_chunks = self.config.policy.num_action_chunks
            largest_return = self._env.reward_limit * self.config.env.max_control_steps
            self._check_answer = AnswerCheck(f"rollout/{rollout}", self._env.spaces, num_chunks, largest_return)
        self.env.show(None)
        spaces = self.env.spaces
        for env in self._simulators():
            env.show(shown)
        return spaces

    def show(self, cameras: tuple[int, ...]) -> None:
        """Show the policy only these cameras of the simulator, by their index there, in this order."""
        for env in self._simulators():
            env.show(cameras)

    @property
    def env(self) -> RestartingEnv:
        """Return the running simulator."""
        if self._env is None:
            raise RuntimeError("load() comes first")
        return self._env

    def close(self) -> None:
        """Stop the simulator."""
        for env in self._simulators():
            env.close()
        self._env = self._evaluation_env = None

    def _simulators(self) -> list[RestartingEnv]:
        return [env for env in (self._env, self._evaluation_env) if env is not None]

    def collect(self, step: int, policy_version: int = 0) -> Episodes:
        """Collect `rollout_epochs` x `horizon` chunk steps for training step `step`.

        policy_version: the oldest version that may choose actions. Returns `Collected`, then the shard of each actor
        rank that owns rows here (`edges.seeds.actor_ranks_of`). Each part is sent separately, to the process that
        needs it.
        """
        return self._checked(self._collect(step, policy_version))

    def _checked(self, episodes: Episodes) -> Episodes:
        """Return the same generator, to which only right answers pass. Raises RunError naming the rollout worker."""
        assert self._check_answer is not None, "load() comes first"
        try:
            observation = next(episodes)
            while True:
                chunk = yield observation
                self._check_answer(observation, chunk)
                observation = episodes.send(chunk)
        except StopIteration as finished:
            return finished.value

    def _collect(self, step: int, policy_version: int) -> Episodes:
        num_faults = len(self.env.faults)
        self.telemetry.step = step + 1
        is_profiled = step in self.config.logging.profile_steps
        self._collector.profile = profile = CallProfile() if is_profiled else None
        episodes, builder = yield from self._collector.collect(step, policy_version)
        if profile is not None:
            self._collector.profile = None
            profile.write(Path(self.config.output_dir or "."), step, self.telemetry.worker)
        shards = builder.shards(int(self._envs[0]), self._envs_per_rank, self._collector.rule.group_size)
        collected = Collected(
            episodes=episodes,
            num_control_steps=builder.num_control_steps,
            policy_version=builder.policy_version,
            tally=self._collector.tally.drain(),
            simulator_faults=tuple(self.env.faults[num_faults:]),
            row_faults=self.env.drain_row_faults(),
            starts=self._collector.drain_starts(),
            groups=self._collector.drain_groups(),
            left_out=self._collector.drain_left_out(),
            num_valid=tuple(shards[rank].num_chunk_steps for rank in sorted(shards)),
        )
        return collected, *(shards[rank] for rank in sorted(shards))

    def evaluate(
        self, seeds: list[int], num_videos: int, policy_version: int = 0
    ) -> Generator[Observation, ActionChunk, tuple[Evaluated]]:
        """Run one episode per seed at `evaluation.temperature`.

        num_videos: rows whose first episode is recorded as a video. policy_version: the oldest that may choose actions.
        """
        return self._checked(self._evaluate_beside(seeds, num_videos, policy_version))

    def _evaluate_beside(self, seeds: list[int], num_videos: int, policy_version: int) -> Episodes:
        """Evaluate in the simulator of evaluations, so that running episodes of training go on after it."""
        if self._evaluation_env is None:
            self._collector.forget()
            return (yield from self._evaluate(seeds, num_videos, policy_version))
        collector = self._collector
        training = self._env
        late = collector.late
        self._env = self._evaluation_env
        collector.late = LateActions(self.config.env.action_delay, self._num_envs)
        try:
            return (yield from self._evaluate(seeds, num_videos, policy_version))
        finally:
            self._env = training
            collector.late = late

    def _evaluate(self, seeds: list[int], num_videos: int, policy_version: int) -> Episodes:
        temperature = self.config.evaluation.temperature
        continues = self.config.evaluation.real_time_chunking.enable
        self.telemetry.step = self._collector.profile = None
        self._collector.drain_starts()
        before = self._no_video
        ledger = EpisodeLedger(self._envs)
        attempts = _Attempts(seeds)
        rows = np.arange(min(self._num_envs, len(seeds)))
        recorded: dict[int, list[np.ndarray]] = {int(row): [] for row in rows[:num_videos]}
        videos: list[tuple[EpisodeReport, np.ndarray]] = []
        if rows.size == 0:
            return (Evaluated([]),)
        frames = self._all_rows(self._reset_to(ledger, rows, attempts.take(rows.size)))
        every = -(-self.config.env.max_control_steps // (self.config.policy.num_action_chunks * MAX_SHOTS))
        for number in count():
            if rows.size == 0:
                break
            self._record_frames(recorded, list(recorded) if number % every == 0 else [])
            keys = sampling_keys(self.config.evaluation.seed, 0, 0, ledger.seeds[rows], ledger.length[rows])
            is_first = ledger.length[rows] == 0
            coming = self._collector.late.coming(rows, self.env.spaces.num_actions) if continues else None
            chunk = yield Observation(
                self.rank, frames.rows(rows), keys, temperature, None, rows, is_first, policy_version, coming
            )
            result = self._collector.step(rows, chunk)
            ledger.add(result)
            over = rows[result.ended[rows]]
            frames = result.frames
            broken = rows[result.infra_fault[rows]].tolist()
            num_left_out = sum(attempts.is_last(int(ledger.seeds[row]), result.fault(row)) for row in broken)
            self.telemetry.count("evaluation_episodes", over.size - len(broken) + num_left_out)
            self._record_frames(recorded, [row for row in over.tolist() if row in recorded])
            videos += [(ledger.last[row], np.stack(recorded.pop(row))) for row in over.tolist() if row in recorded]
            following = attempts.take(over.size, is_idle=over.size == rows.size)
            again = over[: following.size]
            if again.size:
                ledger.start(again, 0)
                frames = frames.replaced(again, self._reset_to(ledger, again, following))
            rows = np.setdiff1d(rows, over[again.size :])
        self.env.drain_row_faults()  # the next training step shall not report them
        reason = self._no_video if before != self._no_video else ""
        void = [report for report in ledger.reports if report.infra_fault]
        sound = [report for report in ledger.reports if not report.infra_fault]
        return (Evaluated(sound, void, attempts.left_out, videos, reason, self._collector.drain_starts()),)

    def fingerprint(self) -> dict[str, str]:
        """Return what makes this worker's simulator what it is: versions, renderer, assets."""
        return dict(self.env.fingerprint)

    def probe(self, seeds: list[int]) -> list[EpisodeStart]:
        """Return the starts of episodes with these reset seeds. Running episodes are dropped."""
        self._collector.forget()
        found: list[EpisodeStart] = []
        for first in range(0, len(seeds), self._num_envs):
            some = np.array(seeds[first : first + self._num_envs], np.int64)
            found += starts_of(self.env.reset(np.arange(some.size), some), some)
        return found

    def sample(self, seeds: list[int], actions: np.ndarray) -> WorldSample:
        """Return what the world shows at these starts, and its answers to actions [R, K, A]. Drops running episodes."""
        self._collector.forget()
        return sample_world(self.env, np.array(seeds, np.int64), actions)

    def _reset_to(self, ledger: EpisodeLedger, rows: np.ndarray, seeds: np.ndarray) -> Frames:
        """Begin in `rows` the episodes of `seeds`, one each. Returns their frames."""
        frames = self._collector.reset(rows, seeds)
        ledger.assign(rows, seeds, frames.instructions)
        return frames

    def _all_rows(self, frames: Frames) -> Frames:
        """Pad the frames of the first rows with empty ones to the number of envs."""
        missing = self._num_envs - len(frames)
        images = np.pad(frames.images, [(0, missing)] + [(0, 0)] * (frames.images.ndim - 1))
        return Frames(images, np.pad(frames.proprio, [(0, missing), (0, 0)]), frames.instructions + ("",) * missing)

    # --- demonstrations ---------------------------------------------------------------------

    def record_demos(self, folder: str) -> str:
        """Record this worker's share of the expert's episodes beside `folder`. Returns the path of the recording."""
        part = f"{folder}.part-{self.rank}"
        with self.telemetry.span("record demos"):
            record_episodes(self.env, self.config, self.rank, Path(part), self.telemetry)
        return part

    def write_demos(self, folder: str, parts: list[str]) -> None:
        """Write one dataset to `folder` from the recordings of all env workers, then remove these."""
        env = self.config.env
        size = self.config.env.image_size
        spaces = self.env.spaces
        numbered = tuple(f"camera_{i}" for i in range(spaces.num_images))
        cameras = tuple(short_name(name) for name in spaces.cameras) or numbered
        names = spaces.action_names
        sizes = ((size, size),) * len(cameras)
        features = DemoFeatures(
            cameras,
            sizes,
            spaces.num_proprio,
            len(names),
            float(spaces.control_hz or env.action_hz),
            action_names=names,
            has_rewards=True,
        )
        with self.telemetry.span("write demos"):
            write_dataset(features, parts, folder)

    def _record_frames(self, recorded: dict[int, list[np.ndarray]], rows: list[int]) -> None:
        """Add a picture of each of `rows`; drop all recordings if the simulator cannot draw."""
        try:
            for row in rows:
                recorded[row].append(self.env.render(row, VIDEO_HEIGHT, VIDEO_WIDTH))
        except NoPicture as reason:
            self._no_video = str(reason)
            recorded.clear()


class _Attempts:
    """The seeds of an evaluation that have no result yet, and those that get none.

    The last attempt at a seed has the simulator for itself: a fault of the whole simulator voids the episodes of all
    rows, and only one of them is its cause.
    """

    def __init__(self, seeds: list[int]):
        self.left_out: list[LeftOutEpisode] = []
        self._waiting = list(seeds)
        self._alone: list[int] = []  # seeds before their last attempt
        self._num_void: Counter[int] = Counter()

    def take(self, count: int, is_idle: bool = False) -> np.ndarray:
        """Return the next seeds, `count` at most. is_idle: no other row runs an episode."""
        taken = self._waiting[:count]
        del self._waiting[:count]
        if is_idle and not taken:
            taken = self._alone[:1]
            del self._alone[:1]
        return np.array(taken, np.int64)

    def is_last(self, seed: int, fault: str) -> bool:
        """Count a void episode of `seed`, and return whether the seed is left out now."""
        self._num_void[seed] += 1
        number = self._num_void[seed]
        if number == MAX_ATTEMPTS:
            self.left_out.append(LeftOutEpisode(seed, number, fault))
        elif number == MAX_ATTEMPTS - 1:
            self._alone.append(seed)
        else:
            self._waiting.append(seed)
        return number == MAX_ATTEMPTS
