"""OpenGL without a display: settings of a process, and the device that EGL chooses."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, MutableMapping
from importlib import metadata
from typing import Any

from rlrun.config.simulator_process import Decided, Setting, Variable

log = logging.getLogger(__name__)

MUJOCO_GL = "MUJOCO_GL"
PLATFORM = "PYOPENGL_PLATFORM"
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
_MAX_GL_ERRORS = 8  # OpenGL keeps at most one flag of each kind
VARIABLE = "MUJOCO_EGL_DEVICE_ID"
VISIBLE = "CUDA_VISIBLE_DEVICES"
FIRST_WITH_CUDA_NUMBERS = 4  # MuJoCo, which before takes the variable for an index into EGL's own list
_LIBRARY = "libEGL.so.1"
_CUDA_DEVICE = 0x323A  # EGL_CUDA_DEVICE_NV


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


def device_name() -> str:
    """Return OpenGL's own name of the device of the current context. Example: "llvmpipe (LLVM 15.0.6, 256 bits)"."""
    from OpenGL.GL import GL_RENDERER, glGetError, glGetString

    for _ in range(_MAX_GL_ERRORS):  # those of others who drew in this process; PyOpenGL would raise them here
        if not glGetError():
            break
    return glGetString(GL_RENDERER).decode(errors="replace")


def num_egl_devices() -> int | None:
    """Return the number of devices that EGL lists, without opening any; None if EGL cannot list them."""
    devices = _devices()
    return None if devices is None else len(devices)


def _devices() -> list[int] | None:
    """Return the handles of EGL's devices, in its order; None if EGL cannot list them."""
    query = _function("eglQueryDevicesEXT", ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    count = ctypes.c_int(0)
    if query is None or not query(0, None, ctypes.byref(count)):
        return None
    handles = (ctypes.c_void_p * count.value)()
    if not query(count.value, handles, ctypes.byref(count)):
        return None
    return [handle or 0 for handle in handles[: count.value]]


def _cuda_numbers() -> list[int | None]:
    """Return CUDA's number of each device that EGL lists, None for those that are no card of CUDA."""
    attribute = ctypes.POINTER(ctypes.c_ssize_t)
    query = _function("eglQueryDeviceAttribEXT", ctypes.c_void_p, ctypes.c_int, attribute)
    if query is None:
        return []
    numbers: list[int | None] = []
    for device in _devices() or []:
        number = ctypes.c_ssize_t(-1)
        has_number = query(device, _CUDA_DEVICE, ctypes.byref(number))
        numbers.append(number.value if has_number else None)
    return numbers


def _function(name: str, *arguments: Any) -> Callable[..., int] | None:
    """Return a function of libEGL's extensions, None where there is none."""
    try:
        egl = ctypes.CDLL(_LIBRARY)
        egl.eglGetProcAddress.restype = ctypes.c_void_p
        address = egl.eglGetProcAddress(name.encode())
    except (OSError, AttributeError):
        return None
    return ctypes.CFUNCTYPE(ctypes.c_uint, *arguments)(address) if address else None


def number_by_egl(wanted: int) -> None:
    """Let the variable name card `wanted`, as CUDA counts, by its place in EGL's own list, whose order may differ.

    A driver that hides other cards counts those of CUDA_VISIBLE_DEVICES. The variable stays as it is where EGL cannot
    tell whose card is whose.
    """
    numbers = _cuda_numbers()
    visible = os.environ.get(VISIBLE, "").split(",")
    hidden = visible.index(str(wanted)) if str(wanted) in visible else None
    number = wanted if wanted in numbers else hidden
    if number is None or numbers.count(number) != 1:
        return
    os.environ[VARIABLE] = str(numbers.index(number))
    if numbers.index(number) != wanted:
        log.info("%s=%d: EGL lists card %d there", VARIABLE, numbers.index(number), wanted)


def prepare_robosuite() -> None:
    """Let robosuite be imported, which refuses a number that CUDA_VISIBLE_DEVICES does not name: a place in EGL's list.

    Nothing in its process computes by CUDA, so that list of cards is taken away then.
    """
    visible = os.environ.get(VISIBLE, "").split(",")
    if VARIABLE not in os.environ or os.environ[VARIABLE] in visible:
        return
    os.environ.pop(VISIBLE, None)
    if visible[0].isdigit() and _reads_places():
        number_by_egl(int(visible[0]))  # once more, since the driver may list other cards now


def _reads_places() -> bool:
    """Return whether this interpreter's MuJoCo takes the variable for a place in EGL's list."""
    try:
        return int(metadata.version("mujoco").partition(".")[0]) < FIRST_WITH_CUDA_NUMBERS
    except (metadata.PackageNotFoundError, ValueError):
        return False


def prepare_process() -> None:
    """Remove the variables of this process with which MuJoCo could not be imported, or could not draw."""
    drop_unusable(os.environ)
    drop_other_platform(os.environ)
    wanted = os.environ.get(VARIABLE, "")
    is_planned = wanted == os.environ.get(VISIBLE, "").partition(",")[0]  # else it is somebody's own, or placed already
    if wanted.isdigit() and is_planned and _reads_places():
        number_by_egl(int(wanted))
    drop_unlisted_device()


def drop_unlisted_device() -> None:
    """Remove the variable if EGL lists fewer devices: MuJoCo would raise, although it can draw on another device.

    The plan counts GPUs as nvidia-smi does. Drivers that hide other cards list the worker's own only. In a container
    without the graphics part of the driver, EGL lists Mesa's software device only. MuJoCo then takes the first device
    that works, beginning with those of CUDA_VISIBLE_DEVICES.
    """
    wanted = os.environ.get(VARIABLE, "")
    count = num_egl_devices()
    if wanted.isdigit() and count is not None and int(wanted) >= count:
        del os.environ[VARIABLE]
        log.info("%s=%s is taken away: EGL lists %d devices here", VARIABLE, wanted, count)
