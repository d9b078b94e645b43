"""Recording of demonstrations: env workers save their episodes as files, and one of them writes the dataset."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.data.lerobot import DatasetError, DemoFeatures, DemoWriter, Episode
from rlrun.data.lerobot.layout import RECORD_AGAIN
from rlrun.data.message_files import MessageFileError, read_message, write_message
from rlrun.edges.frames import Frames
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.telemetry import Telemetry

MAX_FAILURE_SHARE = 0.75  # an expert that fails more often is considered broken


@dataclass(eq=False)
class _Row:
    """The episode of one row, so far: L control steps."""

    seed: int
    instruction: str
    images: list[np.ndarray] = field(default_factory=list)  # L of uint8 [N, H, W, 3], before each action
    proprio: list[np.ndarray] = field(default_factory=list)  # L of float32 [P]
    actions: list[np.ndarray] = field(default_factory=list)  # L of float32 [A], the expert's intended actions
    rewards: list[float] = field(default_factory=list)  # L
    is_terminated: bool = False
    is_cut: bool = False

    def episode(self) -> Episode:
        """Return the successful episode."""
        images, proprio, actions = (np.stack(steps) for steps in (self.images, self.proprio, self.actions))
        rewards = np.array(self.rewards, np.float32)
        return Episode(images, proprio, actions, self.instruction, True, self.seed, rewards, self.is_terminated)


def demonstrate(
    env: VectorEnv,
    num_episodes: int,
    first_seed: int,
    seed_stride: int,
    noise: float,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[Episode]:
    """Yield successful expert episodes in the order in which they end; drop failed ones.

    noise: standard deviation of the noise on executed actions, relative to each action's range. The recorded action has
    no noise, so that the data shows how to recover (DART). progress: called after each control step of all rows.
    Raises RunError if the expert mostly fails.
    """
    recorder = _Recorder(env, first_seed, seed_stride, noise)
    num_tried = num_good = num_cut = 0
    while num_good < num_episodes:
        for row, is_success in recorder.step():
            num_tried += 1
            num_cut += row.is_cut and not is_success
            if is_success and num_good < num_episodes:
                num_good += 1
                yield row.episode()
        progress()
        if num_tried >= 4 * env.num_envs and num_good < (1 - MAX_FAILURE_SHARE) * num_tried:
            raise _unfit_expert(num_good, num_tried, num_cut, noise)


def _unfit_expert(num_good: int, num_tried: int, num_cut: int, noise: float) -> RunError:
    """Return the error of an expert that mostly fails. num_cut: failed episodes that lasted until the time limit."""
    num_failed = num_tried - num_good
    remedies = ["try demos.noise=0, without the disturbance of its actions"] if noise else []
    remedies += ["raise env.max_control_steps"] if num_cut else []
    remedies += ["mend the expert"] if num_cut < num_failed else []
    return RunError(
        f"The expert succeeded in only {num_good} of {num_tried} episodes.",
        key="demos.noise" if noise else "env.max_control_steps" if num_cut else "demos.path",
        value=noise or None,
        cause=f"of the {num_failed} that failed {num_cut} lasted until the time limit, and {num_failed - num_cut} "
        f"ended before it; its actions were disturbed by {noise:g} of their range",
        remedy=f"{', or '.join(remedies)}; or give demonstrations in demos.path",
        exit_status=ExitStatus.bad_input,
    )


class _Recorder:
    """Runs all rows of an env in parallel, each in its own episode."""

    def __init__(self, env: VectorEnv, first_seed: int, seed_stride: int, noise: float):
        self.env = env
        self._next_seed = first_seed
        self._stride = seed_stride
        low, high = env.spaces.limits
        width = high - low
        self._scale = noise * np.where(np.isfinite(width), width, 0.0)  # without limits no share of them is known
        self._rows = np.arange(env.num_envs)
        self._episodes: list[_Row] = []
        self._random: list[np.random.Generator] = []
        self._frames = self._start(self._rows)

    def step(self) -> list[tuple[_Row, bool]]:
        """Run one control step of every row. Returns the episodes that ended, and whether they succeeded."""
        wanted = self.env.expert_action(self._rows)
        for row, episode in enumerate(self._episodes):
            episode.images.append(self._frames.images[row])
            episode.proprio.append(self._frames.proprio[row])
            episode.actions.append(wanted[row])
        disturbance = np.stack([random.standard_normal(wanted.shape[1]) for random in self._random])
        executed = (wanted + self._scale * disturbance).astype(np.float32)
        result = self.env.step_chunk(executed[:, None])
        for row, episode in enumerate(self._episodes):
            episode.rewards.append(float(result.rewards[row].sum()))
            episode.is_terminated = bool(result.terminated[row])
            episode.is_cut = bool(result.truncated[row])
        over = np.flatnonzero(result.ended)
        ended = [(self._episodes[row], bool(result.success[row] and not result.infra_fault[row])) for row in over]
        self._frames = result.frames
        if over.size:
            self._frames = result.frames.replaced(over, self._start(over))
        return ended

    def _start(self, rows: np.ndarray) -> Frames:
        seeds = self._next_seed + self._stride * np.arange(len(rows))
        self._next_seed += self._stride * len(rows)
        frames = self.env.reset(rows, seeds)
        for row, seed, instruction in zip(rows, seeds.tolist(), frames.instructions, strict=True):
            episode = _Row(seed, instruction)
            random = np.random.default_rng(seed)
            if row < len(self._episodes):
                self._episodes[row] = episode
                self._random[row] = random
            else:
                self._episodes.append(episode)
                self._random.append(random)
        return frames


def record_episodes(env: VectorEnv, config: RunConfig, rank: int, part: Path, telemetry: Telemetry) -> None:
    """Fill the folder `part` with the episodes of env worker `rank`, one file per episode, named by its seed."""
    shutil.rmtree(part, ignore_errors=True)  # left by a run that was killed while recording
    part.mkdir(parents=True)
    demos = config.demos
    num_workers = config.env.num_workers
    share = len(range(rank, demos.num_episodes, num_workers))
    moved = partial(telemetry.count, "demo_steps")  # worlds that draw slowly need minutes for their first episodes
    for episode in demonstrate(env, share, demos.seed + rank, num_workers, demos.noise, moved):
        write_message(part / f"{episode.seed}.episode", episode)
        telemetry.count("demos")


def write_dataset(features: DemoFeatures, parts: Sequence[str], folder: str) -> None:
    """Write one dataset to `folder` from the episodes of all `parts`, ordered by seed, then remove the parts.

    Replaces files that an earlier try left at `folder`. Raises DatasetError naming a damaged episode.
    """
    shutil.rmtree(folder, ignore_errors=True)
    files = sorted((file for part in parts for file in Path(part).iterdir()), key=lambda file: int(file.stem))
    with DemoWriter(folder, features) as writer:
        for file in files:
            try:
                writer.add(read_message(file, Episode))
            except MessageFileError as error:
                raise DatasetError(file, error.cause, RECORD_AGAIN) from error
        writer.finish()
    for part in parts:
        shutil.rmtree(part)
