"""Drawing by OpenGL as an env worker does, in a process of its own: `python -m benchmarks.gpu.drawing CARD [SCENES]`.

Prints as JSON the name of the device that drew, and CUDA's number of it. With a folder of exported LIBERO scenes
instead what a native LIBERO worker of eight rows takes of the card, by nvidia-smi, and what the plan counts for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

SUITE, TASK, NUM_ROWS = "libero_goal", 3, 8
_DISPLAY_DEVICE = 0x322C  # EGL_DEVICE_EXT
_CUDA_DEVICE = 0x323A  # EGL_CUDA_DEVICE_NV


def main() -> None:
    """Draw on a card."""
    card, scenes = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    os.environ |= {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": card, "CUDA_VISIBLE_DEVICES": card}
    from rlrun.envs import opengl

    opengl.prepare_process()
    print(json.dumps(_drawn() if scenes is None else _libero(int(card), scenes)))


def _drawn() -> dict[str, Any]:
    import mujoco

    from rlrun.config.schema import Renderer
    from rlrun.envs.embedded.renderer import OpenGLRenderer

    renderer = OpenGLRenderer(mujoco.MjModel.from_xml_string("<mujoco/>"), Renderer.egl)
    return {"name": renderer.drawn_by, "card": drawn_card()}


def drawn_card() -> int | None:
    """Return CUDA's number of the device of EGL's current display; None if it is no card of CUDA."""
    egl = ctypes.CDLL("libEGL.so.1")
    egl.eglGetCurrentDisplay.restype = egl.eglGetProcAddress.restype = ctypes.c_void_p
    number, device = ctypes.c_ssize_t(-1), ctypes.c_ssize_t(0)
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_ssize_t))
    places = [egl.eglGetProcAddress(name) for name in (b"eglQueryDisplayAttribEXT", b"eglQueryDeviceAttribEXT")]
    if not all(places):
        return None
    of_display, of_device = map(query, places)
    if not of_display(egl.eglGetCurrentDisplay(), _DISPLAY_DEVICE, ctypes.byref(device)):
        return None
    return number.value if of_device(device.value, _CUDA_DEVICE, ctypes.byref(number)) else None


def _libero(card: int, scenes: str) -> dict[str, Any]:
    import numpy as np

    from rlrun.config.loader import load
    from rlrun.config.simulator_spec import simulator_spec
    from rlrun.envs.libero.libero_env import make_libero

    own = [f"env.libero.{key}" for key in (f"scenes={scenes}", f"suite={SUITE}", f"task_ids=[{TASK}]")]
    config = load(["env=libero", "policy.kind=cnn", *own]).env
    before = _used_bytes(card)
    env = make_libero(config, NUM_ROWS)
    env.reset(np.arange(NUM_ROWS), np.arange(NUM_ROWS))  # draws each row
    taken = _used_bytes(card) - before
    env.close()
    return {"bytes": taken, "planned": simulator_spec(config).resources.memory(config).of(NUM_ROWS)}


def _used_bytes(card: int) -> int:
    from rlrun.system import nvidia_smi

    found = {index: nvidia_smi.parse_mebibytes(used) for index, used in nvidia_smi.query(["index", "memory.used"])}
    used = found.get(str(card))
    if used is None:
        raise OSError(f"nvidia-smi does not say how much of card {card} is used")
    return used


if __name__ == "__main__":
    main()
