"""OpenGL without a display: settings of a process, and the device that EGL chooses."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import MutableMapping

from rlrun.config.simulator_spec import Decided, Setting, Variable

log = logging.getLogger(__name__)

MUJOCO_GL, PLATFORM = "MUJOCO_GL", "PYOPENGL_PLATFORM"
# What MuJoCo documents for Linux; importing it raises for any other value, such as cgl or wgl of other systems.
_TAKEN = (
    *("", "glfw", "glx", "egl", "osmesa", "enable", "enabled", "on", "true", "1"),
    *("disable", "disabled", "off", "false", "0"),
)
WITHOUT_DISPLAY = ("egl", "osmesa")

EGL_DEVICE = Variable(
    "MUJOCO_EGL_DEVICE_ID", ("env",), Decided.plan, "cameras are rendered on the worker's own accelerator"
)
MESA_THREADS = Variable(
    "LP_NUM_THREADS", ("env",), Decided.plan, "software OpenGL draws on the thread that asks, without handing over"
)
VARIABLES = (
    EGL_DEVICE,
    MESA_THREADS,
    Variable(MUJOCO_GL, ("env",), Decided.node, "MuJoCo's own choice else looks for a display first"),
    Variable("SDL_VIDEODRIVER", ("env",), Decided.node, "pygame draws without a window"),
    Variable("PYGAME_HIDE_SUPPORT_PROMPT", ("env",), Decided.node, "pygame's greeting is no news"),
)


def environment(accelerators: tuple[int, ...], num_cores: int) -> list[Setting]:
    """Return variables that make cameras render on the worker's own accelerator, or by Mesa."""
    return [EGL_DEVICE.to(accelerators[0])] if accelerators else [MESA_THREADS.to(0)]


def drop_unusable(environment: MutableMapping[str, str]) -> None:
    """Remove a MUJOCO_GL that MuJoCo does not take on this system, before anything imports it, and log that."""
    value = environment.get(MUJOCO_GL)
    if value is not None and value.lower().strip() not in _TAKEN:
        del environment[MUJOCO_GL]
        log.warning("%s=%s is taken away: MuJoCo takes egl, osmesa, glfw or disabled here", MUJOCO_GL, value)


def drop_other_platform(environment: MutableMapping[str, str]) -> None:
    """Remove a PYOPENGL_PLATFORM that needs a display, for a world that renders without one, and log that."""
    value = environment.get(PLATFORM, "")
    if value and value not in WITHOUT_DISPLAY:
        del environment[PLATFORM]
        log.warning("%s=%s is taken away: cameras are rendered without a display, by egl or osmesa", PLATFORM, value)


_MAX_GL_ERRORS = 8  # OpenGL keeps at most one flag of each kind


def device_name() -> str:
    """Return OpenGL's own name of the device of the current context. Example: "llvmpipe (LLVM 15.0.6, 256 bits)"."""
    from OpenGL.GL import GL_RENDERER, glGetError, glGetString

    for _ in range(_MAX_GL_ERRORS):  # those of others who drew in this process; PyOpenGL would raise them here
        if not glGetError():
            break
    return glGetString(GL_RENDERER).decode(errors="replace")


VARIABLE = "MUJOCO_EGL_DEVICE_ID"
_LIBRARY = "libEGL.so.1"


def num_egl_devices() -> int | None:
    """Return how many devices EGL lists, without opening any; None if EGL cannot list them."""
    try:
        egl = ctypes.CDLL(_LIBRARY)
        egl.eglGetProcAddress.restype = ctypes.c_void_p
        address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    except (OSError, AttributeError):
        return None
    if not address:
        return None
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))(address)
    count = ctypes.c_int(0)
    return count.value if query(0, None, ctypes.byref(count)) else None


def prepare_process() -> None:
    """Remove the variables of this process with which MuJoCo could not be imported, or could not draw."""
    drop_unusable(os.environ)
    drop_other_platform(os.environ)
    drop_unlisted_device()


def drop_unlisted_device() -> None:
    """Remove the variable if EGL lists fewer devices: MuJoCo would raise, although it can draw on another device.

    The plan counts GPUs as nvidia-smi does. In a container without the graphics part of the driver, EGL lists Mesa's
    software device only. MuJoCo then takes the first device that works, beginning with those of CUDA_VISIBLE_DEVICES.
    """
    wanted, count = os.environ.get(VARIABLE, ""), num_egl_devices()
    if wanted.isdigit() and count is not None and int(wanted) >= count:
        del os.environ[VARIABLE]
        log.info("%s=%s is taken away: EGL lists %d devices here", VARIABLE, wanted, count)
