"""All parameters of a learner as one number."""

from __future__ import annotations

import zlib

import torch

from rlrun.actor.learner import Learner


def checksum_of(learner: Learner) -> int:
    """CRC-32 of all parameters and buffers as this rank sees them; unlike numbers mean that ranks drifted apart."""
    checksum = 0
    for name, tensor in learner.sharded.full_tensors(learner.sharded.shards().items()):
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        checksum = zlib.crc32(content, zlib.crc32(name.encode(), checksum))
    return checksum
