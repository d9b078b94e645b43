"""Sends many tensors to a device by one copy for which the host does not wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; enough for every type


def uploaded(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors of the host on a device, with their values, types and shapes.

    For an accelerator they are packed into pinned memory, which one copy sends while the host goes on: a copy from
    pageable memory makes it wait until the device has done all that was asked of it before. The results share one
    allocation, which lives as long as any of them. torch keeps the pinned memory until the copy is done, and reuses it.
    On a CPU the tensors themselves are returned. The meta device needs no pinned memory.
    """
    if device.type == "cpu" or not tensors:
        return list(tensors)
    starts = []
    end = 0
    for tensor in tensors:
        starts.append(end)
        end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for start, tensor in zip(starts, tensors, strict=True):
        _part(packed, start, tensor).copy_(tensor)
    sent = packed.to(device, non_blocking=True)
    return [_part(sent, start, tensor) for start, tensor in zip(starts, tensors, strict=True)]


def _part(packed: Tensor, start: int, like: Tensor) -> Tensor:
    """Return the bytes from `start` as a tensor with the type and shape of `like`."""
    return packed[start : start + like.nbytes].view(like.dtype).view(like.shape)
