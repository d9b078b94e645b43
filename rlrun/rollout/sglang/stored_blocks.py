"""The weights of a policy folder as updates for an engine, which therefore reads no checkpoint of any format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rlrun.data.messages import TensorSlice
from rlrun.policies.weight_files import StoredWeights
from rlrun.rollout.sglang.engine import TensorBlock

BLOCK_BYTES = 256 * 1024 * 1024
ALIGNMENT = 64


def stored_blocks(weights: StoredWeights, dtype: torch.dtype) -> Iterator[TensorBlock]:
    """Yield all tensors, cast to `dtype`, in blocks of at most BLOCK_BYTES or one tensor. Closes the files."""
    slices: list[TensorSlice] = []
    parts: list[np.ndarray] = []
    end = 0
    for name in weights.in_order():
        tensor = weights.read(name).to(dtype)
        raw = _bytes(tensor)
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        if slices and offset + raw.nbytes > BLOCK_BYTES:
            yield TensorBlock(tuple(slices), np.concatenate(parts))
            slices, parts, end, offset = [], [], 0, 0
        slices.append(TensorSlice(name, str(dtype)[len("torch.") :], tuple(tensor.shape), offset, raw.nbytes))
        parts += [np.zeros(offset - end, np.uint8), raw]
        end = offset + raw.nbytes
    if slices:
        yield TensorBlock(tuple(slices), np.concatenate(parts))
    weights.close()


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
