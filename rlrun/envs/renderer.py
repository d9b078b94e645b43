"""Cameras to pixels: EGL, else OSMesa, else ray casting; one OpenGL renderer per process."""

from __future__ import annotations

import logging
import os
from typing import Protocol

import mujoco
import numpy as np

from rlrun.config.schema import Renderer

log = logging.getLogger(__name__)

MAX_PIXELS = 640  # to each side; the size of the off-screen buffer in room.document
MIN_CONTRAST = 2.0  # standard deviation of grey levels below which a frame is taken for a broken one


class CameraRenderer(Protocol):
    """Draws the model's scene."""

    kind: Renderer

    def draw(self, data: mujoco.MjData, camera: mujoco.MjvCamera, height: int, width: int) -> np.ndarray:
        """uint8 [height, width, 3], RGB, top row first."""

    def close(self) -> None:
        """Free the graphics context."""


def fixed_camera(model: mujoco.MjModel, name: str) -> mujoco.MjvCamera:
    """The model's camera `name`."""
    camera = mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera(name).id
    return camera


def overview_camera(look_at, distance: float, azimuth: float, elevation: float) -> mujoco.MjvCamera:
    """A camera for people; angles in degrees."""
    camera = mujoco.MjvCamera()
    camera.type, camera.lookat[:] = mujoco.mjtCamera.mjCAMERA_FREE, look_at
    camera.distance, camera.azimuth, camera.elevation = distance, azimuth, elevation
    return camera


class OpenGLRenderer:
    """Rasterises through an EGL or OSMesa context of this process."""

    _owner: OpenGLRenderer | None = None  # a second live context in one process has returned garbage silently

    def __init__(self, model: mujoco.MjModel, kind: Renderer):
        if OpenGLRenderer._owner is not None:
            raise RuntimeError("this process already has an OpenGL renderer; close() the other environment first")
        self.kind, self._model = kind, model
        self._context = _gl_context(kind)
        self._context.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=400)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._option = mujoco.MjvOption()
        self._mjr = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._mjr)
        OpenGLRenderer._owner = self

    def draw(self, data: mujoco.MjData, camera: mujoco.MjvCamera, height: int, width: int) -> np.ndarray:
        pixels = np.zeros((height, width, 3), np.uint8)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, None, camera, everything, self._scene)
        viewport = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(viewport, self._scene, self._mjr)
        mujoco.mjr_readPixels(pixels, None, viewport, self._mjr)
        return pixels[::-1]

    def close(self) -> None:
        if OpenGLRenderer._owner is self:
            self._mjr.free()
            self._context.free()
            OpenGLRenderer._owner = None


def _gl_context(kind: Renderer):
    os.environ.setdefault("LP_NUM_THREADS", "1")  # software OpenGL: one process per core beats many threads
    if kind is Renderer.egl:
        from mujoco.egl import GLContext
    else:
        from mujoco.osmesa import GLContext
    return GLContext(MAX_PIXELS, MAX_PIXELS)


def open_renderer(model: mujoco.MjModel, wanted: Renderer) -> CameraRenderer:
    return OpenGLRenderer(model, Renderer.egl)
