"""Starts OmniGibson in this process: environment and macros first, then the application, with progress reports."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rlrun.config.schema import EnvConfig
from rlrun.envs.omnigibson.kit_files import VARIABLE, application_root, take_folder, turn_to_start
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.machine_load import num_cores

logger = logging.getLogger(__name__)

# Isaac contains an older numba and imports some parts of it; those of the environment must be imported before.
IMPORTED_FIRST = ("llvmlite", "numba", "numba.np.arrayobj", "numba.core.runtime.context")
# modules that may hold the macro GRASP_WINDOW: 3.9 and 3.7
GRASPING_MODULES = ("omnigibson.robots.robot", "omnigibson.robots.manipulation_robot")
THREADS_VARIABLE = "PXR_WORK_THREAD_LIMIT"  # read by USD itself
PHYSICS_THREADS = "persistent/physics/numThreads"
THREAD_SETTINGS = (
    "/plugins/carb.tasking.plugin/threadCount",
    "/plugins/omni.tbb.globalcontrol/maxThreadCount",
    f"/{PHYSICS_THREADS}",
)
TEXTURE_SETTING = "/rtx-transient/resourcemanager/texturestreaming/memoryBudget"


def launch(config: EnvConfig, progress: Callable[[], None]) -> ModuleType:
    """Return the module `omnigibson`, with its application running and its macros set.

    progress: called after each stage, and later for every object that a scene adds.
    """
    settings = config.section(OmniGibsonConfig)
    root = application_root()
    prepare_process(take_folder(root))
    _check_tiles(settings)
    for name in IMPORTED_FIRST:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    progress()
    og = importlib.import_module("omnigibson")
    progress()
    macros = importlib.import_module("omnigibson.macros")
    set_macros(macros.gm, config)
    if settings.grasp_window_s is not None:
        # looked up on the class, since an instance has every attribute name
        can_unlock = hasattr(type(macros.macros), "unlocked")
        with macros.macros.unlocked() if can_unlock else contextlib.nullcontext():
            set_grasp_window(settings.grasp_window_s)
    disable_rules(settings.disabled_transition_rules)
    with turn_to_start(root, progress):
        og.launch(
            physics_dt=1.0 / settings.physics_hz,
            rendering_dt=1.0 / config.action_hz,
            sim_step_dt=1.0 / config.action_hz,
            device="cpu",
        )
    og.sim.add_callback_on_add_obj(name="rlrun_progress", callback=lambda added: progress())
    progress()
    _apply_settings(settings)
    return og


def prepare_process(folder: Path) -> None:
    """Set what OmniGibson and Kit read from this process when they are imported and started.

    folder: of Kit's caches and logs, of this simulator alone.
    """
    if os.environ.get("OMNIGIBSON_GPU_ID"):  # Kit must number GPUs as CUDA does: if CUDA hides some, an id is ambiguous
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["OMNIGIBSON_HEADLESS"] = "1"
    os.environ[VARIABLE] = str(folder)
    if os.environ.pop("OMNIGIBSON_NO_OMNI_LOGS", None):
        logger.warning("OMNIGIBSON_NO_OMNI_LOGS is not honoured: with it, a crash takes Kit's last lines with it")
    sys.argv[1:] = [f"--{name}={num_threads()}" for name in THREAD_SETTINGS]  # Kit reads sys.argv, and would read ours


def num_threads() -> int:
    """Return the threads of Kit's pools: this simulator's share of the node's cores, by the plan."""
    return int(os.environ.get(THREADS_VARIABLE) or max(1, num_cores() - 1))


def _check_tiles(settings: OmniGibsonConfig) -> None:
    accelerator = os.environ.get("OMNIGIBSON_GPU_ID", "0")
    if settings.tiled_rendering and accelerator not in ("", "0"):
        raise RunError(
            f"Tiled rendering works on accelerator 0 only; this simulator has accelerator {accelerator}.",
            key="env.omnigibson.tiled_rendering",
            value=True,
            cause="OmniGibson's tiled sensor keeps its pictures on cuda:0, whichever GPU renders.",
            remedy="Set env.omnigibson.tiled_rendering=false, or give simulators accelerator 0 alone.",
            exit_status=ExitStatus.placement,
        )


def set_grasp_window(seconds: float) -> None:
    """Set GRASP_WINDOW where this generation keeps it. Raises RunError if no module has it.

    A macro of any name can be set on any module without an error, so the module is looked for first.
    """
    for name in GRASPING_MODULES:
        with contextlib.suppress(ImportError, AttributeError):
            own_macros = importlib.import_module(name).m
            if "GRASP_WINDOW" in own_macros:
                own_macros.GRASP_WINDOW = seconds
                return
    raise RunError(
        "This OmniGibson has no grasp window.",
        key="env.omnigibson.grasp_window_s",
        value=seconds,
        cause=f"Neither {' nor '.join(GRASPING_MODULES)} has GRASP_WINDOW.",
        remedy="Set env.omnigibson.grasp_window_s=null: the build's own grasping.",
    )


def disable_rules(names: Sequence[str]) -> None:
    """Switch off transition rules by class name. Raises RunError for an unknown name."""
    if not names:
        return
    rules = importlib.import_module("omnigibson.transition_rules")
    for name in names:
        rule: Any = getattr(rules, name, None)
        if not hasattr(rule, "ENABLED"):
            raise RunError(
                f"This OmniGibson has no transition rule {name}.",
                key="env.omnigibson.disabled_transition_rules",
                value=list(names),
                cause="omnigibson.transition_rules has no such class with ENABLED.",
                remedy="Correct the name.",
            )
        rule.ENABLED = False


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
            ) from error


def wanted_macros(settings: OmniGibsonConfig) -> dict[str, bool]:
    """Return macro of `omnigibson.macros.gm` -> value."""
    return {
        "HEADLESS": True,
        "ENABLE_OBJECT_STATES": True,  # goals consist of object states
        "USE_GPU_DYNAMICS": settings.gpu_dynamics,
        "ENABLE_FLATCACHE": settings.flatcache,
        "ENABLE_TRANSITION_RULES": settings.transition_rules,
        "RENDER_VIEWER_CAMERA": settings.viewer_camera,
        "USE_NUMPY_CONTROLLER_BACKEND": settings.numpy_controllers,
        "ENABLE_TILED_RENDERING": settings.tiled_rendering,
    }


def _apply_settings(own: OmniGibsonConfig) -> None:
    """Limit streamed textures, which else use more memory than several simulators on a GPU have, and physics threads.

    Builds that clear sys.argv before Kit starts take the number of physics threads only here.
    """
    lazy = importlib.import_module("omnigibson.lazy")
    settings = lazy.carb.settings.get_settings()
    settings.set_float(TEXTURE_SETTING, own.texture_memory_share)
    settings.set_int(f"/{PHYSICS_THREADS}", num_threads())
