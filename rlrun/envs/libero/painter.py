"""Draws cameras of LIBERO's scenes by OpenGL, as robosuite draws them; all worlds of its tasks use it."""

from __future__ import annotations

import copy
import importlib
import os
from typing import Any
from weakref import finalize

import mujoco
import numpy as np

from rlrun.envs.opengl import MUJOCO_GL, WITHOUT_DISPLAY, device_name

MAX_PIXELS = 640  # to each side
_MAX_GEOMS = 1000  # as robosuite
VISIBLE_GROUPS = (1, 2)  # of geoms; collision shapes are in group 0


class ScenePainter:
    """Renders any simulator of one scene, on the thread that made it."""

    def __init__(self, model: mujoco.MjModel, detail: float | None = None):
        """detail: m; leave out smaller details of meshes, reflections and shadows. None: draw all, as LIBERO does."""
        model.vis.global_.offwidth = model.vis.global_.offheight = MAX_PIXELS
        self._opengl = _context()
        self._opengl.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS)
        self._option = mujoco.MjvOption()
        if detail is not None:
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._option.geomgroup[:] = [group in VISIBLE_GROUPS for group in range(len(self._option.geomgroup))]
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        drawn = model if detail is None else with_coarse_meshes(model, detail)
        self._resources = mujoco.MjrContext(drawn, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        # Freed with the last row that uses it; at exit, MuJoCo itself ends all of OpenGL.
        finalize(self, _free, self._opengl, self._resources).atexit = False

    @property
    def drawn_by(self) -> str:
        """OpenGL's own name of the device. Example: "llvmpipe (LLVM 15.0.6, 256 bits)"."""
        self._opengl.make_current()
        return device_name()

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, camera: str, height: int, width: int) -> np.ndarray:
        """Return uint8 [height, width, 3], RGB, bottom row first, of a state of this scene."""
        self._opengl.make_current()  # every scene has its own context
        self._camera.fixedcamid = model.camera(camera).id
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, data, self._option, None, self._camera, everything, self._scene)
        pixels = np.zeros((height, width, 3), np.uint8)
        viewport = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(viewport, self._scene, self._resources)
        mujoco.mjr_readPixels(pixels, None, viewport, self._resources)
        return pixels


def with_coarse_meshes(model: mujoco.MjModel, detail: float) -> mujoco.MjModel:
    """Return a copy, to be drawn only, of which all vertices within a cube of `detail` m are one of them.

    LIBERO's scenes have a quarter of a million triangles. A renderer on the CPU spends its time on them, however small
    the picture: at 6 mm a fourth of them is left.
    """
    model = copy.copy(model)
    for mesh in range(model.nmesh):
        vertices = model.mesh_vert[model.mesh_vertadr[mesh] :][: model.mesh_vertnum[mesh]]
        first = model.mesh_faceadr[mesh]
        end = model.mesh_faceadr[mesh] + model.mesh_facenum[mesh]
        faces = _representatives(vertices, detail)[model.mesh_face[first:end]]
        is_face = (faces != np.roll(faces, 1, axis=1)).all(1)
        _, once = np.unique(np.sort(faces[is_face], axis=1), axis=0, return_index=True)
        kept = np.flatnonzero(is_face)[np.sort(once)]
        model.mesh_face[first : first + kept.size] = faces[kept]
        for corners in (model.mesh_facenormal, model.mesh_facetexcoord):
            corners[first : first + kept.size] = corners[first + kept]
        model.mesh_facenum[mesh] = kept.size
    return model


def _representatives(vertices: np.ndarray, detail: float) -> np.ndarray:
    """Return int [V], for each vertex that of its cube which is nearest to the mean of the cube's vertices."""
    _, cubes, sizes = np.unique(np.round(vertices / detail), axis=0, return_inverse=True, return_counts=True)
    cubes = cubes.reshape(-1)
    sums = [np.bincount(cubes, vertices[:, axis]) for axis in range(3)]
    distances = np.linalg.norm(vertices - (np.stack(sums, axis=1) / sizes[:, None])[cubes], axis=1)
    nearest_first = np.lexsort((distances, cubes))
    return nearest_first[np.cumsum(sizes) - sizes][cubes]


def _context() -> Any:
    """Return a context of the platform that draw_without_display chose, which may have been after MuJoCo's import."""
    platform = os.environ.get(MUJOCO_GL, "").lower().strip()
    module = f"mujoco.{platform}" if platform in WITHOUT_DISPLAY else "mujoco.gl_context"
    return importlib.import_module(module).GLContext(MAX_PIXELS, MAX_PIXELS)


def _free(opengl: Any, resources: mujoco.MjrContext) -> None:
    opengl.make_current()  # else objects with the same numbers in another scene's context are deleted
    resources.free()
    opengl.free()
