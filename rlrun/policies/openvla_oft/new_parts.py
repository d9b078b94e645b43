"""Initial values of the parts that reinforcement learning adds to an official checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.value_head import LAST_VALUE_STD

NEW_PARTS = ("value_head.", "proprio_projector.", "action_queries.")


def new_parts(model: OpenVLAOFT, seed: int) -> dict[str, Callable[[], Tensor]]:
    """Return name -> a function that makes the float32 tensor on the CPU, for every new part of `model` (meta or not).

    Each tensor is made when it is read. Values are the same on every rank, however the rest is loaded. Action
    queries begin as zeros, with which official checkpoints were trained.
    """
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith(NEW_PARTS)}
    last = next((name for name in reversed(shapes) if name.startswith("value_head.")), None)
    return {name: partial(_first_value, name, shape, name == last, seed) for name, shape in shapes.items()}


def _first_value(name: str, shape: torch.Size, is_last: bool, seed: int) -> Tensor:
    """Return a value as `OpenVLAOFT._init_weights` does: by fan-in, biases zero. is_last: of the value head."""
    with torch.device("cpu"):
        if len(shape) != 2:
            return torch.zeros(shape)
        generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
        return torch.empty(shape).normal_(std=LAST_VALUE_STD if is_last else shape[1] ** -0.5, generator=generator)
