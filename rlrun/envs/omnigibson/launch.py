"""Starts OmniGibson in this process: environment and macros first, then the application, with progress reports."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rlrun.config.schema import EnvConfig
from rlrun.envs.omnigibson.settings import OmniGibsonConfig
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

logger = logging.getLogger(__name__)

# Isaac contains an older numba and imports some parts of it; those of the environment must be imported before.
IMPORTED_FIRST = ("llvmlite", "numba", "numba.np.arrayobj", "numba.core.runtime.context")
TEXTURE_SETTING = "/rtx-transient/resourcemanager/texturestreaming/memoryBudget"


def launch(config: EnvConfig, progress: Callable[[], None]) -> ModuleType:
    """Return the module `omnigibson`, with its application running and its macros set.

    progress: called after each stage, and later for every object that a scene adds.
    """
    prepare_environment()
    for name in IMPORTED_FIRST:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    progress()
    og = importlib.import_module("omnigibson")
    progress()
    macros = importlib.import_module("omnigibson.macros")
    set_macros(macros.gm, config)
    # looked up on the class, since an instance has every attribute name
    can_unlock = hasattr(type(macros.macros), "unlocked")
    with macros.macros.unlocked() if can_unlock else contextlib.nullcontext():
        macros.macros.robots.manipulation_robot.GRASP_WINDOW = config.section(OmniGibsonConfig).grasp_window_s
    own = config.section(OmniGibsonConfig)
    og.launch(
        physics_dt=1.0 / config.physics_hz,
        rendering_dt=1.0 / (own.rendering_hz or config.action_hz),
        sim_step_dt=1.0 / config.action_hz,
        device="cpu",
        viewer_width=own.viewer_width,
        viewer_height=own.viewer_height,
    )
    og.sim.add_callback_on_add_obj(name="rlrun_progress", callback=lambda added: progress())
    progress()
    _limit_textures(own.texture_memory_share)
    return og


def prepare_environment() -> None:
    """Make Kit number GPUs as CUDA does: if CUDA alone hides some, a GPU id has two meanings."""
    if os.environ.get("OMNIGIBSON_GPU_ID"):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["OMNIGIBSON_HEADLESS"] = "1"


def set_macros(gm: Any, config: EnvConfig) -> None:
    """Set the global macros, once, before any code has read them.

    A macro that a generation does not have is left out. A macro that was read can no longer be set: RunError, unless it
    already has the wanted value.
    """
    for macro, value in wanted_macros(config.section(OmniGibsonConfig)).items():
        if macro not in gm:  # a test on the mapping, since reading an attribute would lock the macro
            logger.info("this OmniGibson has no macro %s", macro)
            continue
        if dict.get(gm, macro) == value:
            continue
        try:
            setattr(gm, macro, value)
        except AttributeError as error:
            raise RunError(
                f"OmniGibson's macro {macro} can no longer be set to {value}.",
                key="env.omnigibson",
                value=value,
                cause=str(error),
                remedy="Something imported omnigibson and read it before: no sitecustomize or plug-in may do that.",
                exit_status=ExitStatus.placement,
                row="omnigibson-macros",
            ) from error


def wanted_macros(own: OmniGibsonConfig) -> dict[str, bool]:
    """Return macro of `omnigibson.macros.gm` -> value."""
    return {
        "HEADLESS": True,
        "ENABLE_OBJECT_STATES": True,  # goals consist of object states
        "USE_GPU_DYNAMICS": own.gpu_dynamics,
        "ENABLE_FLATCACHE": own.flatcache,
        "ENABLE_TRANSITION_RULES": own.transition_rules,
        "RENDER_VIEWER_CAMERA": own.viewer_camera,
        "USE_NUMPY_CONTROLLER_BACKEND": own.numpy_controllers,
        "ENABLE_TILED_RENDERING": own.tiled_rendering,
    }


def _limit_textures(share: float) -> None:
    """Limit streamed textures, which else use more memory than several simulators on one GPU have."""
    lazy = importlib.import_module("omnigibson.lazy")
    lazy.carb.settings.get_settings().set_float(TEXTURE_SETTING, share)
