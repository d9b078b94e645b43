"""Which spaces are camera pictures, which might be, and how a picture becomes uint8 [H, W, 3]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

SMALLEST = 8  # pixels a side of a picture that its shape alone does not give away
SMALLEST_GREY = 16  # likewise, in two dimensions
KNOWN = "uint8 [H, W, 3], [H, W, 1], [3, H, W], [1, H, W] or [H, W], or float [H, W, 3] or [3, H, W] of 0..1 or 0..255"

FLAT = "Box, Discrete, MultiBinary, MultiDiscrete, and Tuples of them"


@dataclass(frozen=True)
class Camera:
    """How to read the pictures of a space. Example: Camera("image", is_first=True, scale=255.0)."""

    key: str
    is_first: bool = False  # channels are the first dimension
    scale: float | None = None  # of float pictures, to 0..255; None: they are uint8

    def picture(self, seen: np.ndarray) -> np.ndarray:
        """Return uint8 [H, W, 3]. Raises ValueError if the picture is of another type or shape than its space."""
        seen = np.asarray(seen)
        if self.is_first and seen.ndim == 3:
            seen = np.moveaxis(seen, 0, -1)
        if seen.ndim == 2:
            seen = seen[:, :, None]
        if seen.ndim != 3 or seen.shape[2] not in (1, 3):
            raise ValueError(f"camera '{self.key}' gives an array of shape {list(seen.shape)}, which is no picture")
        if self.scale is not None:
            if not np.isfinite(seen).all():
                raise ValueError(f"camera '{self.key}' holds NaN or infinity")
            seen = np.rint(np.clip(seen * self.scale, 0, 255)).astype(np.uint8)
        elif seen.dtype != np.uint8:
            raise ValueError(f"camera '{self.key}' gives {seen.dtype}, and its space says uint8")
        return seen if seen.shape[2] == 3 else np.repeat(seen, 3, axis=2)


def camera_of(key: str, space: spaces.Space) -> Camera | None:
    """Return how to read the pictures of a space that is unambiguously a camera's; None: it is none."""
    if not isinstance(space, spaces.Box):
        return None
    shape, is_bytes = space.shape, space.dtype == np.uint8
    if is_bytes and shape[2:] == (3,):
        return Camera(key)
    is_last, is_first = len(shape) == 3 and shape[2] in (1, 3), len(shape) == 3 and shape[0] in (1, 3)
    sides = shape[:2] if is_last else shape[1:] if is_first else shape
    if len(sides) != 2 or min(sides) < (SMALLEST if is_last or is_first else SMALLEST_GREY):
        return None
    limits = float(space.low.min()), float(space.low.max()), float(space.high.min()), float(space.high.max())
    if is_bytes and limits == (0, 0, 255, 255):
        return Camera(key, is_first=is_first and not is_last)
    is_colour = shape[2 if is_last else 0] == 3 and (is_last or is_first)  # one channel of floats may be a depth
    if space.dtype.kind == "f" and is_colour and limits in ((0, 0, 1, 1), (0, 0, 255, 255)):
        return Camera(key, is_first=not is_last, scale=255.0 / limits[-1])
    return None


def may_hold_pixels(space: spaces.Space) -> bool:
    """Return whether flattening might make numbers of pixels: of bytes in three dimensions, or of a picture's size."""
    if isinstance(space, spaces.Tuple):
        return any(may_hold_pixels(below) for below in space.spaces)
    if isinstance(space, spaces.Dict):
        return any(may_hold_pixels(below) for below in space.spaces.values())
    if holds_bytes(space) or camera_of("", space) is not None:
        return True
    sides = sorted(space.shape or ())
    return len(sides) > 1 and sides[-2] >= (SMALLEST_GREY if len(sides) == 2 else SMALLEST)


def holds_bytes(space: spaces.Space) -> bool:
    """Return whether the space consists of bytes in three or more dimensions: pixels, whatever their order."""
    if isinstance(space, spaces.Tuple):
        return any(holds_bytes(below) for below in space.spaces)
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 3


def is_flat(space: spaces.Space) -> bool:
    """Return whether the space has a fixed number of numbers, which `spaces.flatten` gives."""
    if isinstance(space, spaces.Tuple):
        return all(map(is_flat, space.spaces))
    if isinstance(space, spaces.Dict):
        return all(map(is_flat, space.spaces.values()))
    return isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete))
