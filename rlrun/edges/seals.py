"""Seals of answers: a number per row that the rollout worker computes, and that each later reader computes again.

A seal depends on the question as it arrived (frames, sampling key) and on the answer (actions, tokens,
log-probabilities, value, policy version). The env worker compares it with the question that it sent and the answer that
came; the actor worker compares it with the trajectory. Whoever passed on a row that differs from its seal changed it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from rlrun.edges.frames import Frames
from rlrun.edges.seeds import hash_numbers


def row_sums(*arrays: np.ndarray) -> np.ndarray:
    """Return uint32 [R]: the CRC-32 of each row, over the bytes of all arrays (each [R, ...])."""
    whole = [np.ascontiguousarray(array) for array in arrays]
    sums = [0] * len(whole[0])
    for array in whole:
        if array.size:
            sums = [zlib.crc32(row.data, crc) for row, crc in zip(array.reshape(len(array), -1), sums, strict=True)]
    return np.array(sums, np.uint32)


def frame_sums(frames: Frames) -> np.ndarray:
    """Return uint32 [R]: the CRC-32 of what the policy sees in each row: pictures, state and instruction."""
    sums = row_sums(frames.images, frames.proprio).tolist()
    return np.array(
        [zlib.crc32(text.encode(), crc) for text, crc in zip(frames.instructions, sums, strict=True)], np.uint32
    )


def answer_seals(
    sampling_keys: np.ndarray,
    policy_version: np.ndarray | int,
    seen: np.ndarray,
    acted: np.ndarray,
    learned: Sequence[np.ndarray],
) -> np.ndarray:
    """Return uint64 [R]: the seals of answers.

    seen: uint32 [R], `frame_sums` of the question. acted: uint32 [R], `row_sums` of the actions. learned: what the
    actor learns from: tokens, log-probabilities [R, ...] and values [R].
    """
    return hash_numbers(sampling_keys, policy_version, seen, acted, row_sums(*learned))
