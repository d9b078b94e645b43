"""Stands in for torchvision's functions, by those of torch that they call on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F


def resize(image: torch.Tensor, size: list[int], interpolation: Any, antialias: bool) -> torch.Tensor:
    """Resize uint8 [C, H, W]."""
    if list(image.shape[-2:]) == list(size):
        return image
    return F.interpolate(image[None], size=size, mode=interpolation.value, antialias=antialias)[0]


def pad(image: torch.Tensor, padding: list[int], fill: int) -> torch.Tensor:
    """Put a colour beside uint8 [C, H, W]. padding: left, top, right, bottom."""
    left, top, right, bottom = padding
    return F.pad(image, (left, right, top, bottom), value=fill)
