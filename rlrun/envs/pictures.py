"""Scales pictures of third-party simulators, and chooses their OpenGL."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from PIL import Image

from rlrun.config.schema import Renderer


def resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return uint8 [height, width, 3]; a smaller picture consists of area means."""
    if picture.shape[:2] == (height, width):
        return picture
    kind = Image.Resampling.BOX if height * width < picture.shape[0] * picture.shape[1] else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(picture).resize((width, height), kind))


def picture_of(drawn: Any) -> np.ndarray:
    """Return what an environment's render() gave, uint8 [H, W, 3]. Raises ValueError if that is no picture."""
    if drawn is None:
        raise ValueError("render() returns None")
    found = np.asarray(drawn)
    if found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] not in (3, 4):
        kind = "a list" if isinstance(drawn, (list, tuple)) else f"an array of {found.dtype} {list(found.shape)}"
        raise ValueError(f"render() returns {kind}, not uint8 [H, W, 3]")
    return found[:, :, :3]


def draw_without_display(wanted: Renderer) -> None:
    """Choose MuJoCo's OpenGL before a simulator is imported, and keep pygame from opening a window."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("LP_NUM_THREADS", "0")
    is_osmesa = wanted is Renderer.osmesa or (wanted is not Renderer.egl and not _has_egl())
    os.environ.setdefault("MUJOCO_GL", "osmesa" if is_osmesa else "egl")


def _has_egl() -> bool:
    """Return whether EGL works: it makes the context, and the drawing calls are in one of three further libraries."""
    return _is_there("libEGL.so.1") and any(map(_is_there, ("libOpenGL.so.0", "libGL.so.1", "libGLESv2.so.2")))


def _is_there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
