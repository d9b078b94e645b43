"""Batches of demonstrations for the actor ranks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
import torch

from rlrun.actor.imitation import DemonstrationBatch, ablation_rows
from rlrun.algorithms.advantages import chunk_rewards
from rlrun.algorithms.algorithm import DemonstratedSteps
from rlrun.config.schema import RewardType, RunConfig
from rlrun.data.lerobot import DatasetError, DemoDataset
from rlrun.data.lerobot.reader import dataset_errors
from rlrun.policies.spec import PolicySpec
from rlrun.system.errors import ExitStatus, RunError


def require_shown(config: RunConfig, spec: PolicySpec, demos: DemoDataset, folder: str) -> None:
    """Raise RunError if a dataset lacks observations of the policy: pictures, or the state."""
    lacks_state = not demos.features.num_proprio and "proprio" in spec.observes and config.policy.use_proprio
    lacks_images = not demos.features.cameras and "images" in spec.observes
    if not (lacks_state or lacks_images):
        return
    remedies = ["Name the feature that holds it in demos.keys.state, or set policy.use_proprio=false."] * lacks_state
    remedies += ["Name the features of its cameras in demos.keys.images."] * lacks_images
    raise RunError(
        f"The policy {spec.name} observes {' and '.join(['the state'] * lacks_state + ['pictures'] * lacks_images)}, "
        "which the dataset does not hold.",
        key="demos.path",
        value=folder,
        cause=" ".join(demos.left_out) or None,
        remedy=" ".join(remedies),
        exit_status=ExitStatus.bad_input,
    )


class Demonstrations:
    """The batches of one actor rank. They are read in a thread, so that a disk that does not answer ends the run."""

    def __init__(self, config: RunConfig, demos: DemoDataset, folder: str, rank: int, num_steps: int):
        """num_steps: control steps of a demonstrated chunk."""
        self._config = config
        self._num_steps = num_steps
        self._demos = demos
        self._folder = folder
        self._rank = rank
        self._reader = ThreadPoolExecutor(1, "demonstrations")

    def coming(self, frames: np.ndarray) -> Future[DemonstrationBatch]:
        """Begin to read the batch of these frames, int [M]."""

        def read() -> DemonstrationBatch:
            batch = self._demos.batch(frames, self._num_steps)
            return DemonstrationBatch(batch.images, batch.proprio, batch.instructions, batch.actions, batch.step_valid)

        return self._reader.submit(read)

    def arrived(self, coming: Future[DemonstrationBatch]) -> DemonstrationBatch:
        """Return a batch. Raises RunError for a picture that cannot be read, or that takes too long."""
        with dataset_errors(self._folder):
            if not wait([coming], timeout=self._config.cluster.step_deadline_s).done:
                cause = f"a batch of pictures was not read within {self._config.cluster.step_deadline_s:g} s"
                remedy = "copy the dataset to a faster disk, or raise cluster.step_deadline_s"
                raise DatasetError(self._folder, cause, remedy)
            return coming.result(0)

    def beside_update(self, num_updates: int, step: int) -> DemonstrationBatch:
        """Return this rank's part of the `sft.batch_size` frames beside an optimizer step of reinforcement learning.

        num_updates: training steps done; step: optimizer steps of this one. They decide on the frames.
        """
        config = self._config
        random = np.random.default_rng((config.seed, num_updates, step))
        size = config.sft.batch_size
        count = len(self._demos)
        frames = random.choice(count, size, replace=size > count)
        draw = int(random.integers(2**31))
        batch = self.arrived(self.coming(frames[self._rank :: config.actor.num_workers]))
        return replace(batch, draw=draw)


def imitation_batches(
    config: RunConfig, demos: DemoDataset, folder: str, rank: int, num_steps: int
) -> Iterator[DemonstrationBatch]:
    """Yield `sft.num_steps` batches, of which the next is read while one is learned.

    num_steps: control steps of a demonstrated chunk. Every epoch is a new permutation, of which each rank takes its
    part. Raises RunError as `Demonstrations.arrived`.
    """
    reader = Demonstrations(config, demos, folder, rank, num_steps)
    coming: Future[DemonstrationBatch] | None = None
    for frames in _permuted(config, len(demos), rank):
        following = reader.coming(frames)
        if coming is not None:
            yield reader.arrived(coming)
        coming = following
    if coming is not None:
        yield reader.arrived(coming)


def ablation_batch(demos: DemoDataset, folder: str, num_steps: int) -> DemonstrationBatch:
    """Return the batch with which every rank tries whether the policy looks (`rlrun.actor.imitation`)."""
    with dataset_errors(folder):
        batch = demos.batch(ablation_rows(len(demos)), num_steps)
    return DemonstrationBatch(batch.images, batch.proprio, batch.instructions, batch.actions, batch.step_valid)


def demonstrated_steps(config: RunConfig, demos: DemoDataset, folder: str) -> DemonstratedSteps:
    """Return a chunk step from every frame of a dataset whose future it holds: that terminated, or that has a next
    frame. Raises RunError if the dataset holds no rewards, or no such frame."""
    num_chunks = config.policy.num_action_chunks
    algorithm = config.algorithm
    if not demos.features.has_rewards or not np.isfinite(demos.rewards).all():
        raise RunError(
            f"The dataset {folder} holds no rewards, from which {algorithm.name} would learn.",
            key="demos.path",
            value=folder,
            cause="its features next.reward and next.done are missing, or not finite",
            remedy="Record it again with rlrun.demos (a cached one: delete its folder), or take algorithm.name=sac.",
            exit_status=ExitStatus.bad_input,
        )
    ends = demos.episode_ends
    frames = np.arange(len(demos))
    following = frames + num_chunks
    last = np.minimum(following, ends) - 1
    terminated = demos.done[last] & (last == ends - 1)
    kept = np.flatnonzero(terminated | (following < ends))
    steps = kept[:, None] + np.arange(num_chunks)
    valid = steps < ends[kept][:, None]
    steps = np.minimum(steps, ends[kept][:, None] - 1)
    is_by_step = algorithm.reward_type is RewardType.action
    rewards = torch.from_numpy(demos.rewards[steps])
    valid_steps = torch.from_numpy(valid)
    earned, discount = chunk_rewards(rewards, valid_steps, algorithm.gamma, is_by_step)
    return DemonstratedSteps(
        proprio=np.array(demos.proprio[kept]),
        actions=np.array(demos.actions[steps]),
        rewards=earned,
        discount=discount,
        terminated=torch.from_numpy(terminated[kept]),
        next_proprio=np.array(demos.proprio[np.minimum(following[kept], len(demos) - 1)]),
    )


def _permuted(config: RunConfig, num_frames: int, rank: int) -> Iterator[np.ndarray]:
    """Yield the frames of each of this rank's batches, int [M]."""
    random = np.random.default_rng((config.seed, config.sft.num_steps))
    num_ranks = config.actor.num_workers
    waiting = np.zeros(0, np.int64)
    for _ in range(config.sft.num_steps):
        while len(waiting) < config.sft.batch_size:
            waiting = np.concatenate([waiting, random.permutation(num_frames)])
        mine = waiting[: config.sft.batch_size][rank::num_ranks]
        waiting = waiting[config.sft.batch_size :]
        yield mine
