"""Starts of episodes: the split of a reset seed, and the digest of an episode's first observation.

The splits have disjoint seeds, which proves little for a world that has few starts or ignores its seed. Equal starts
have equal first observations on one machine, whatever their seeds are. A run records both; `rlrun certify` compares.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from rlrun.edges.frames import Frames

DEMO_SEEDS = range(2_000_000)
VALIDATION_SEEDS = range(2_000_000, 1 << 31)
TEST_SEEDS = range(1 << 31, 1 << 32)  # no key of the configuration reaches them
TRAINING_SEEDS = range(1 << 32, 1 << 33)
DIGEST_BYTES = 8


class Split(Enum):
    """What the start of an episode is for."""

    train = "train"  # training and demonstrations
    validation = "validation"  # evaluations of a run, by which checkpoints, settings and the end of a run are chosen
    test = "test"  # certification only


def split_of(seed: int) -> Split:
    """Return the split of an episode by its reset seed. Example: split_of(2_000_003) is Split.validation."""
    if seed in VALIDATION_SEEDS:
        return Split.validation
    return Split.test if seed in TEST_SEEDS else Split.train


@dataclass(frozen=True)
class EpisodeStart:
    """env worker -> driver: the start of one episode. Example: EpisodeStart(2_000_003, "5f0c2a9be1d34e77")."""

    seed: int  # reset seed
    digest: str  # of the first observation, as the policy gets it
    state: np.ndarray | None = field(default=None, compare=False, repr=False)  # float32 [P], its proprioception


def starts_of(frames: Frames, seeds: np.ndarray) -> list[EpisodeStart]:
    """Return the start of each row. frames: R rows after a reset; seeds: int [R]."""
    return [EpisodeStart(int(seed), _digest(frames, row), frames.proprio[row].copy()) for row, seed in enumerate(seeds)]


def _digest(frames: Frames, row: int) -> str:
    images, proprio = (np.ascontiguousarray(part[row]) for part in (frames.images, frames.proprio))
    digest = hashlib.blake2b(frames.instructions[row].encode(), digest_size=DIGEST_BYTES)
    for part in (images, proprio):
        digest.update(f"{part.dtype} {part.shape}".encode())
        digest.update(part.data)
    return digest.hexdigest()
