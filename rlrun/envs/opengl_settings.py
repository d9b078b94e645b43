"""Environment variables of workers whose simulator renders its cameras by OpenGL."""

from __future__ import annotations

from rlrun.config.environment import Decided, Setting, Variable

EGL_DEVICE = Variable(
    "MUJOCO_EGL_DEVICE_ID", ("env",), Decided.plan, "cameras are rendered on the worker's own accelerator"
)
MESA_THREADS = Variable(
    "LP_NUM_THREADS", ("env",), Decided.plan, "software OpenGL draws on the thread that asks, without handing over"
)
VARIABLES = (
    EGL_DEVICE,
    MESA_THREADS,
    Variable("MUJOCO_GL", ("env",), Decided.node, "MuJoCo's own choice else looks for a display first"),
    Variable("SDL_VIDEODRIVER", ("env",), Decided.node, "pygame draws without a window"),
    Variable("PYGAME_HIDE_SUPPORT_PROMPT", ("env",), Decided.node, "pygame's greeting is no news"),
)


def environment(accelerators: tuple[int, ...], num_cores: int) -> list[Setting]:
    """Return variables that make cameras render on the worker's own accelerator, or by Mesa."""
    return [EGL_DEVICE.to(accelerators[0])] if accelerators else [MESA_THREADS.to(0)]
