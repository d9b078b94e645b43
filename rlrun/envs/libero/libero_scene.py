"""Sharing between rows of one LIBERO task: the scene is compiled once; meshes and textures are uploaded once.

robosuite does both for every simulator, which takes seconds and graphics memory for each row.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary, finalize

import mujoco
import numpy as np
from mujoco.gl_context import GLContext

MAX_PIXELS = 640  # to each side
_MAX_GEOMS = 1000  # as robosuite
_COLLISION_GROUP = 0  # group of collision shapes, which are not shown


def share_compiled_scenes() -> None:
    """Make robosuite's simulators of one scene share a compiled model; each changes its own copy."""
    from robosuite.utils.binding_utils import MjSim

    MjSim.from_xml_string = classmethod(lambda cls, xml: cls(copy.copy(_compiled(xml))))


@lru_cache(maxsize=1)  # rows are opened one after another, and a scene takes hundreds of megabytes
def _compiled(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(xml)


class ScenePainter:
    """Renders any simulator of one scene, on the thread that made it."""

    def __init__(self, model: mujoco.MjModel):
        model.vis.global_.offwidth = model.vis.global_.offheight = MAX_PIXELS
        self._opengl = GLContext(MAX_PIXELS, MAX_PIXELS)
        self._opengl.make_current()
        self._scene, self._option = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS), mujoco.MjvOption()
        self._option.geomgroup[_COLLISION_GROUP] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        # Freed with the last row that uses it; at exit, MuJoCo itself ends all of OpenGL.
        finalize(self, _free, self._opengl, self._resources).atexit = False

    def draw(self, sim: Any, camera: str, height: int, width: int) -> np.ndarray:
        """Return uint8 [height, width, 3], RGB, bottom row first, of a robosuite simulator."""
        self._opengl.make_current()  # every scene has its own context
        self._camera.fixedcamid = sim.model.camera_name2id(camera)
        model, everything = sim.model._model, mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, sim.data._data, self._option, None, self._camera, everything, self._scene)
        pixels, viewport = np.zeros((height, width, 3), np.uint8), mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(viewport, self._scene, self._resources)
        mujoco.mjr_readPixels(pixels, None, viewport, self._resources)
        return pixels


def _free(opengl: GLContext, resources: mujoco.MjrContext) -> None:
    opengl.make_current()  # else objects with the same numbers in another scene's context are deleted
    resources.free()
    opengl.free()


_painters: WeakValueDictionary[str, ScenePainter] = WeakValueDictionary()


def painter_of(scene: str, model: mujoco.MjModel) -> ScenePainter:
    """Return this process's painter for `scene`; the first row's call makes it from that row's model."""
    painter = _painters.get(scene)
    if painter is None:
        painter = _painters[scene] = ScenePainter(model)
    return painter
