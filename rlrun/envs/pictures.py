"""Pictures of third parties' simulators in the size that is asked for, and the OpenGL that draws them."""

from __future__ import annotations

import ctypes
import os

import numpy as np
from PIL import Image

from rlrun.config.schema import Renderer


def resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]; smaller ones are area means."""
    if picture.shape[:2] == (height, width):
        return picture
    kind = Image.Resampling.BOX if height * width < picture.shape[0] * picture.shape[1] else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(picture).resize((width, height), kind))


def draw_without_display(wanted: Renderer) -> None:
    """Choose, before a simulator is imported, which OpenGL MuJoCo's tasks use; and that pygame opens no window."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("LP_NUM_THREADS", "0")
    is_osmesa = wanted is Renderer.osmesa or (wanted is not Renderer.egl and not _has_egl())
    os.environ.setdefault("MUJOCO_GL", "osmesa" if is_osmesa else "egl")


def _has_egl() -> bool:
    """EGL makes the context; the calls to draw are in any of three further libraries."""
    return _is_there("libEGL.so.1") and any(map(_is_there, ("libOpenGL.so.0", "libGL.so.1", "libGLESv2.so.2")))


def _is_there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
