"""Checks of the arrays in a request: numbers and camera images, with or without a leading dimension of rows.

Shape legend: B rows, H x W pixels, S pixels per side of the policy's images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.envs.pictures import resized
from rlrun.serving.wire import WireError

MAX_PIXELS = 4096  # per side of a camera image
MAX_ROWS = 256


def numbers(request: Mapping[Any, Any], key: str) -> np.ndarray:
    """Return the numbers of an entry, [values] or [B, values], finite or not. Raises WireError."""
    value = request.get(key)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or value.ndim not in (1, 2):
        found = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else "missing or not an array"
        raise WireError(f"{key} is {found}, expected numbers [(rows,) values]")
    if value.ndim == 2 and not 1 <= len(value) <= MAX_ROWS:
        raise WireError(f"{key} has {len(value)} rows, expected 1 to {MAX_ROWS}")
    return value


def require_finite(value: np.ndarray, key: str) -> None:
    """Raise WireError for NaN and infinity. For what the policy reads only."""
    if not np.isfinite(value).all():
        raise WireError(f"{key} holds NaN or infinity")


def images(request: Mapping[Any, Any], key: str, size: int) -> np.ndarray:
    """Return an entry uint8 [(B,) H, W, 3 or 4] as uint8 [B, S, S, 3], by area means. size: S. Raises WireError."""
    pixels = request.get(key)
    if not isinstance(pixels, np.ndarray):
        raise WireError(f"the observation lacks the image {key}")
    pixels = pixels[None] if pixels.ndim == 3 else pixels
    is_picture = pixels.ndim == 4 and pixels.shape[3] in (3, 4) and min(pixels.shape[1:3]) >= 1
    if pixels.dtype != np.uint8 or not is_picture or max(pixels.shape[1:3]) > MAX_PIXELS:
        found = f"{pixels.dtype} {list(pixels.shape)}"
        raise WireError(f"{key} is {found}, expected uint8 [(rows,) height, width, 3 or 4]")
    if not 1 <= len(pixels) <= MAX_ROWS:
        raise WireError(f"{key} has {len(pixels)} rows, expected 1 to {MAX_ROWS}")
    return np.stack([resized(np.ascontiguousarray(picture[:, :, :3]), size, size) for picture in pixels])
