"""Renders cameras by EGL, else OSMesa, else ray casting; one OpenGL renderer per process."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from rlrun.config.schema import Renderer
from rlrun.envs.opengl import device_name
from rlrun.envs.vector_env import SimulatorFault

log = logging.getLogger(__name__)

MAX_PIXELS = 640  # to each side; the size of the off-screen buffer in room.document
MIN_CONTRAST = 2.0  # grey levels of standard deviation; a first frame with less counts as a sign of a broken renderer
AMBIENT = 0.45  # share of ambient light, in ray casting
LIBRARY = {Renderer.egl: "libEGL.so.1", Renderer.osmesa: "libOSMesa.so.8"}
REMEDY = {
    Renderer.egl: "apt-get install libegl1 libgl1-mesa-dri libopengl0 libgl1",
    Renderer.osmesa: "apt-get install libosmesa6, then env.renderer=osmesa",
    Renderer.raycast: "report it",
}
_contexts: dict[Renderer, _Context] = {}  # at most one


class CameraRenderer(ABC):
    """Renders cameras of the model's scene."""

    kind: Renderer

    @property
    @abstractmethod
    def drawn_by(self) -> str:
        """Name of the rendering device or library, for people."""

    @abstractmethod
    def draw(self, data: mujoco.MjData, camera: mujoco.MjvCamera, height: int, width: int) -> np.ndarray:
        """Return uint8 [height, width, 3], RGB, top row first. Raises SimulatorFault on an all-black frame."""

    @abstractmethod
    def close(self) -> None:
        """Free the graphics context."""


def fixed_camera(model: mujoco.MjModel, name: str) -> mujoco.MjvCamera:
    """Return the model's camera `name`."""
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
    camera.fixedcamid = model.camera(name).id
    return camera


def overview_camera(look_at, distance: float, azimuth: float, elevation: float) -> mujoco.MjvCamera:
    """Return a camera for videos and overviews; angles in degrees."""
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    camera.lookat[:] = look_at
    camera.distance = distance
    camera.azimuth = azimuth
    camera.elevation = elevation
    return camera


def _new_scene(model: mujoco.MjModel) -> mujoco.MjvScene:
    scene = mujoco.MjvScene(model, maxgeom=400)
    scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0  # 40 times the frame time on a CPU
    scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    return scene


class OpenGLRenderer(CameraRenderer):
    """Rasterises through the EGL or OSMesa context of the process, on the thread that made it."""

    def __init__(self, model: mujoco.MjModel, kind: Renderer):
        self.kind = kind
        self._model = model
        self._scene = _new_scene(model)
        self._option = mujoco.MjvOption()
        self._context = _process_context(model, kind)

    @property
    def drawn_by(self) -> str:
        """OpenGL's own name of the device. Example: "llvmpipe (LLVM 15.0.6, 256 bits)"."""
        self._context.opengl.make_current()
        return device_name()

    def draw(self, data: mujoco.MjData, camera: mujoco.MjvCamera, height: int, width: int) -> np.ndarray:
        pixels = np.zeros((height, width, 3), np.uint8)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, None, camera, everything, self._scene)
        viewport = mujoco.MjrRect(0, 0, width, height)
        resources = self._context.resources
        self._context.opengl.make_current()  # another library may have made its own context current meanwhile
        mujoco.mjr_render(viewport, self._scene, resources)
        mujoco.mjr_readPixels(pixels, None, viewport, resources)
        if not pixels.any():
            raise SimulatorFault(f"the {self.kind.value} renderer returned a black frame: its context is lost")
        return pixels[::-1]

    def close(self) -> None:
        self._scene = None


@dataclass(frozen=True)
class _Context:
    """The OpenGL context of this process, MuJoCo's resources in it, and the thread on which it is current."""

    opengl: Any
    resources: mujoco.MjrContext
    thread: int


def _process_context(model: mujoco.MjModel, kind: Renderer) -> _Context:
    """Return the one OpenGL context of this process; make it at the first call.

    All models share the resources of the first: they have room.document's floor and settings, and neither
    meshes nor textures. Two sets of resources corrupt each other's frames, and contexts made after another
    was freed have rendered garbage silently; so the context lives until the process ends.
    """
    if kind not in _contexts:
        if _contexts:
            raise RuntimeError(f"this process already draws with {next(iter(_contexts)).value}")
        opengl = _gl_context(kind)
        opengl.make_current()
        resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, resources)
        _contexts[kind] = _Context(opengl, resources, threading.get_ident())
        atexit.register(opengl.free)  # contexts that are freed later, by the interpreter's shutdown, print errors
    if _contexts[kind].thread != threading.get_ident():
        raise RuntimeError("OpenGL is bound to the thread that first drew: make and use environments on that thread")
    return _contexts[kind]


def _gl_context(kind: Renderer):
    """Return a new context of `kind`. PyOpenGL binds to the first platform it loads, so look for the library first."""
    os.environ.setdefault("LP_NUM_THREADS", "0")  # software OpenGL renders on this thread, which saves a handover
    ctypes.CDLL(LIBRARY[kind])
    if kind is Renderer.egl:
        from mujoco.egl import GLContext
    else:
        from mujoco.osmesa import GLContext
    return GLContext(MAX_PIXELS, MAX_PIXELS)


class RaycastRenderer(CameraRenderer):
    """Casts one ray per pixel on the CPU: no system library, a third of the speed at 64 px, a tenth at 224 px."""

    kind = Renderer.raycast
    drawn_by = "none: ray casting in numpy"

    def __init__(self, model: mujoco.MjModel):
        self._model = model
        self._scene = _new_scene(model)
        self._option = mujoco.MjvOption()
        self._colour = model.geom_rgba[:, :3].astype(np.float64)
        self._groups = np.array([1, 1, 1, 0, 0, 0], np.uint8)  # the geom groups that OpenGL shows too

    def draw(self, data: mujoco.MjData, camera: mujoco.MjvCamera, height: int, width: int) -> np.ndarray:
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, None, camera, everything, self._scene)
        eye, rays = _rays(self._scene.camera[0], self._scene.camera[1], height, width)
        count = height * width
        geom = np.full(count, -1, np.int32)
        distance = np.zeros(count)
        normal = np.zeros(3 * count)
        mujoco.mj_multiRay(
            self._model, data, eye, rays.ravel(), self._groups, True, -1, geom, distance, normal, count, 30.0
        )
        facing = np.abs((normal.reshape(-1, 3) * rays).sum(1, keepdims=True))
        shaded = self._colour[geom] * (AMBIENT + (1 - AMBIENT) * facing)
        shaded[geom < 0] = 0.0
        if not shaded.any():
            raise SimulatorFault("the camera sees nothing: every ray missed the scene")
        return (np.clip(shaded, 0, 1) * 255).astype(np.uint8).reshape(height, width, 3)

    def close(self) -> None:
        self._scene = None


def _rays(
    left: mujoco.MjvGLCamera, right: mujoco.MjvGLCamera, height: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return eye point [3] and unit directions [height * width, 3], midway between MuJoCo's two stereo cameras."""
    eye = (np.asarray(left.pos, float) + np.asarray(right.pos, float)) / 2
    forward = np.asarray(left.forward, float)
    up = np.asarray(left.up, float)
    half = (left.frustum_top - left.frustum_bottom) / 2 / left.frustum_near
    rows = half * (1 - 2 * (np.arange(height) + 0.5) / height)
    columns = half * width / height * (2 * (np.arange(width) + 0.5) / width - 1)
    rays = forward + rows[:, None, None] * up + columns[None, :, None] * np.cross(forward, up)
    rays = rays.reshape(-1, 3)
    return eye, rays / np.linalg.norm(rays, axis=1, keepdims=True)


def open_renderer(model: mujoco.MjModel, wanted: Renderer) -> CameraRenderer:
    """Open the renderer that `env.renderer` names; auto takes the first that works here and logs which would be faster.

    Raises RuntimeError that names the system package to install if a named renderer does not work.
    """
    order = (Renderer.egl, Renderer.osmesa, Renderer.raycast) if wanted is Renderer.auto else (wanted,)
    faults: dict[Renderer, str] = {}
    for kind in order:
        renderer, fault = _attempt(model, kind)
        if renderer is not None:
            _tell(kind, faults)
            return renderer
        faults[kind] = fault
    causes = "; ".join(f"{kind.value}: {fault} ({REMEDY[kind]})" for kind, fault in faults.items())
    raise RuntimeError(f"env.renderer={wanted.value} does not work here. {causes}; or set env.renderer=auto")


def _attempt(model: mujoco.MjModel, kind: Renderer) -> tuple[CameraRenderer | None, str]:
    """Return a renderer whose first frames were valid and "", or None and the reason."""
    renderer: CameraRenderer | None = None
    try:
        renderer = RaycastRenderer(model) if kind is Renderer.raycast else OpenGLRenderer(model, kind)
        fault = _fault_of_first_frames(model, renderer)
    except Exception as error:  # the type depends on which part of OpenGL is missing; it may be ctypes.ArgumentError
        fault = f"{type(error).__name__}: {error}"
    if not fault:
        return renderer, ""
    if renderer is not None:
        renderer.close()
    return None, fault.splitlines()[0]


def _fault_of_first_frames(model: mujoco.MjModel, renderer: CameraRenderer) -> str:
    """Render one state twice. Returns why the frames are not valid; "" if they are."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = overview_camera((0.5, 0, 0.5), 3.0, 150.0, -25.0)
    first, second = (renderer.draw(data, camera, 48, 48) for _ in range(2))
    if first.mean(-1).std() < MIN_CONTRAST:
        return "constant image"
    return "" if np.array_equal(first, second) else "two frames of one state differ: uninitialised memory"


def _tell(kind: Renderer, faults: dict[Renderer, str]) -> None:
    if not faults:
        log.info("cameras are drawn by %s", kind.value)
        return
    better = "; ".join(f"{name.value} would be faster: {REMEDY[name]} ({fault})" for name, fault in faults.items())
    if kind is Renderer.osmesa:
        better = f"on a machine with a GPU, {better}"  # without a GPU, ray casting is as fast as EGL
    log.warning("cameras are drawn by %s; %s", kind.value, better)
