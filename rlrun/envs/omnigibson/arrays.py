"""Converts between OmniGibson's tensors and numpy, without importing torch, and scales pictures down."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np


def to_numpy(value: Any) -> np.ndarray:
    """Return a tensor on any device, or anything that numpy accepts, as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def to_tensor(array: np.ndarray) -> Any:
    """Return a tensor of the torch that OmniGibson has imported."""
    torch = sys.modules.get("torch")
    return array if torch is None else torch.as_tensor(array)


def to_rgb(image: Any, size: int) -> np.ndarray:
    """Return uint8 [size, size, 3] of a camera's RGB or RGBA picture of any size, averaged over areas."""
    pixels = to_numpy(image)
    if pixels.ndim != 3 or pixels.shape[-1] not in (3, 4):
        raise ValueError(f"a camera gave {pixels.dtype} {pixels.shape}, expected (H, W, 4)")
    pixels = pixels[..., :3]
    if pixels.dtype != np.uint8:
        scale = 255.0 if np.issubdtype(pixels.dtype, np.floating) else 1.0
        pixels = np.clip(np.round(pixels * scale), 0, 255).astype(np.uint8)
    if pixels.shape[:2] == (size, size):
        return np.ascontiguousarray(pixels)
    rows, columns = _area_weights(pixels.shape[0], size), _area_weights(pixels.shape[1], size)
    narrow = np.einsum("hwc,jw->hjc", pixels.astype(np.float32), columns, optimize=True)
    return np.round(np.einsum("hjc,ih->ijc", narrow, rows, optimize=True)).astype(np.uint8)


@lru_cache(maxsize=16)
def _area_weights(many: int, few: int) -> np.ndarray:
    """Return float32 [few, many]: the share of each source pixel in each target pixel; rows sum to 1."""
    edges = np.linspace(0, many, few + 1)
    start, stop = edges[:-1, None], edges[1:, None]
    pixel = np.arange(many)[None]
    overlap = np.clip(np.minimum(stop, pixel + 1) - np.maximum(start, pixel), 0, None)
    return (overlap / overlap.sum(axis=1, keepdims=True)).astype(np.float32)
