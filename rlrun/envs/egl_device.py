"""Compares MUJOCO_EGL_DEVICE_ID, as the plan sets it, with the devices that EGL lists on this node."""

from __future__ import annotations

import ctypes
import logging
import os

log = logging.getLogger(__name__)

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


def drop_unlisted_device() -> None:
    """Remove the variable if EGL lists fewer devices: MuJoCo would raise, although it can draw on another device.

    The plan counts GPUs as nvidia-smi does. In a container without the graphics part of the driver, EGL lists Mesa's
    software device only. MuJoCo then takes the first device that works, beginning with those of CUDA_VISIBLE_DEVICES.
    """
    wanted, count = os.environ.get(VARIABLE, ""), num_egl_devices()
    if wanted.isdigit() and count is not None and int(wanted) >= count:
        del os.environ[VARIABLE]
        log.info("%s=%s is taken away: EGL lists %d devices here", VARIABLE, wanted, count)
