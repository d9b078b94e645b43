"""Batches of demonstrations for the actor ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlrun.actor.imitation import DemonstrationBatch
from rlrun.config.schema import RunConfig
from rlrun.data.lerobot import DatasetError, DemoDataset
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


def open_dataset(folder: str) -> DemoDataset:
    """Read a dataset into memory. Raises RunError naming an unusable file."""
    try:
        return DemoDataset.load(folder)
    except DatasetError as error:
        raise RunError(
            f"The dataset cannot be used: {error.path}.",
            key="demos.path",
            value=folder,
            cause=error.cause,
            remedy=error.remedy,
            exit_status=ExitStatus.bad_input,
            row="dataset-unreadable",
        ) from error


def imitation_batches(config: RunConfig, demos: DemoDataset, rank: int) -> Iterator[DemonstrationBatch]:
    """Yield `sft.num_steps` batches. Every epoch is a new permutation, of which each rank takes its part."""
    random = np.random.default_rng((config.seed, config.sft.num_steps))
    num_ranks = config.actor.num_workers
    waiting = np.zeros(0, np.int64)
    for _ in range(config.sft.num_steps):
        while len(waiting) < config.sft.batch_size:
            waiting = np.concatenate([waiting, random.permutation(len(demos))])
        mine, waiting = waiting[: config.sft.batch_size][rank::num_ranks], waiting[config.sft.batch_size :]
        batch = demos.batch(mine, config.policy.num_action_chunks)
        yield DemonstrationBatch(batch.images, batch.proprio, batch.instructions, batch.actions, batch.step_valid)
