"""Scales pictures of third-party simulators, switches their shadows off, and chooses their OpenGL."""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Any

import numpy as np
from PIL import Image

from rlrun.config.schema import Renderer
from rlrun.envs.opengl import MUJOCO_GL, PLATFORM, WITHOUT_DISPLAY, drop_unusable

log = logging.getLogger(__name__)
# where environments keep their MjModel: Gymnasium and Meta-World, OGBench, dm_control's, robosuite's and gym-aloha's
_MODELS = ("model", "_model", "physics.model", "_physics.model", "_env.physics.model", "sim.model", "env.sim.model")


def resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return uint8 [height, width, 3]; a smaller picture consists of area means."""
    if picture.shape[:2] == (height, width):
        return picture
    kind = Image.Resampling.BOX if height * width < picture.shape[0] * picture.shape[1] else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(picture).resize((width, height), kind))


def picture_of(drawn: Any) -> np.ndarray:
    """Return the picture of an environment's render(), uint8 [H, W, 3]. Raises ValueError if that is no picture."""
    if drawn is None:
        raise ValueError("render() returns None")
    picture = np.asarray(drawn)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (3, 4):
        kind = "a list" if isinstance(drawn, (list, tuple)) else f"an array of {picture.dtype} {list(picture.shape)}"
        raise ValueError(f"render() returns {kind}, not uint8 [H, W, 3]")
    return picture[:, :, :3]


def draw_without_display(wanted: Renderer) -> None:
    """Choose MuJoCo's OpenGL before a simulator is imported, and keep pygame from opening a window.

    An `env.renderer` of egl or osmesa decides. Else MUJOCO_GL does, if MuJoCo takes its value, then PYOPENGL_PLATFORM,
    which must agree with it, then what is installed.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("LP_NUM_THREADS", "0")
    drop_unusable(os.environ)
    if wanted in (Renderer.egl, Renderer.osmesa):
        given = os.environ.get(MUJOCO_GL, wanted.value)
        if given.lower().strip() != wanted.value:
            log.warning("%s=%s is overridden by env.renderer=%s", MUJOCO_GL, given, wanted.value)
        os.environ[MUJOCO_GL] = wanted.value
    platform = os.environ.get(PLATFORM, "")
    installed = "egl" if _has_egl() else "osmesa"
    os.environ.setdefault(MUJOCO_GL, platform if platform in WITHOUT_DISPLAY else installed)


def _has_egl() -> bool:
    """Return whether EGL works: it makes the context, and the drawing calls are in one of three further libraries."""
    return _is_there("libEGL.so.1") and any(map(_is_there, ("libOpenGL.so.0", "libGL.so.1", "libGLESv2.so.2")))


def _is_there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def switch_shadows_off(env: Any) -> None:
    """Let no light of an environment's MuJoCo model cast shadows: a software renderer then draws four times as fast.

    Does nothing if no such model is found.
    """
    inner = getattr(env, "unwrapped", env)
    for path in _MODELS:
        model = inner
        for name in path.split("."):
            model = getattr(model, name, None)
        casts = getattr(model, "light_castshadow", None)
        if isinstance(casts, np.ndarray):
            casts[:] = 0
