"""The parts that reinforcement learning adds to an official checkpoint, as they begin."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rlrun.policies.openvla_oft.model import LAST_VALUE_STD, OpenVLAOFT

NEW_PARTS = ("value_head.", "proprio_projector.", "action_queries.")


def new_parts(model: OpenVLAOFT, seed: int) -> dict[str, Callable[[], Tensor]]:
    """Name -> what makes the float32 tensor, on the CPU, of every new part that `model` (a meta one will do) has.

    They are made one at a time, when they are read. The same on every rank and however the rest is loaded. Action
    queries begin as the zeros that official checkpoints were trained with.
    """
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith(NEW_PARTS)}
    last = next((name for name in reversed(shapes) if name.startswith("value_head.")), None)
    return {name: partial(_first_value, name, shape, name == last, seed) for name, shape in shapes.items()}


def _first_value(name: str, shape: torch.Size, is_last: bool, seed: int) -> Tensor:
    """As `OpenVLAOFT._init_weights` begins linear layers: by fan-in, biases at zero; is_last: of the value head."""
    with torch.device("cpu"):
        if len(shape) != 2:
            return torch.zeros(shape)
        generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
        return torch.empty(shape).normal_(std=LAST_VALUE_STD if is_last else shape[1] ** -0.5, generator=generator)
