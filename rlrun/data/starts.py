"""Starts of episodes: which of them a run has seen. A start is known by its reset seed and by its first observation.

Seeds of the three splits are disjoint (`rlrun.data.seeds`), which says little of a world that has few starts, or that
ignores its seed. Equal starts have equal first observations on one machine, whatever their seeds are, so runs record a
digest of each, and `rlrun certify` compares them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from rlrun.data.messages import Frames

DIGEST_BYTES = 8


@dataclass(frozen=True)
class EpisodeStart:
    """env worker -> driver: the start of one episode. Example: EpisodeStart(2_000_003, "5f0c2a9be1d34e77")."""

    seed: int  # reset seed
    digest: str  # of the first observation, as the policy gets it


def starts_of(frames: Frames, seeds: np.ndarray) -> list[EpisodeStart]:
    """Return the start of each row. frames: R rows after a reset; seeds: int [R]."""
    return [EpisodeStart(int(seed), _digest(frames, row)) for row, seed in enumerate(seeds)]


def _digest(frames: Frames, row: int) -> str:
    images, proprio = (np.ascontiguousarray(part[row]) for part in (frames.images, frames.proprio))
    digest = hashlib.blake2b(frames.instructions[row].encode(), digest_size=DIGEST_BYTES)
    for part in (images, proprio):
        digest.update(f"{part.dtype} {part.shape}".encode())
        digest.update(part.data)
    return digest.hexdigest()
