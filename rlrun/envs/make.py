"""The one place that turns a configuration into a simulator, in this process or in one of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rlrun.config.schema import OWN_PROCESS, EnvConfig, Simulator
from rlrun.envs.egl_device import drop_unlisted_device
from rlrun.envs.vector_env import VectorEnv


def make_env(
    config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None, python: str | None = None
) -> VectorEnv:
    """`num_envs` rows of the simulator that `config` names.

    progress: called after every part that is loaded; loading may take minutes, but not silently.
    python: the interpreter that holds the simulator; None: this one.
    Raises ValueError for an unknown activity, part or camera, and RuntimeError where the
    simulator cannot run here; both name the key and the remedy.
    """
    if not is_apart(config, python):
        return make_here(config, num_envs, progress)
    from rlrun.envs.omnigibson.kit_log import KNOWN_LINES
    from rlrun.envs.remote.remote_env import RemoteEnv

    known = KNOWN_LINES if config.simulator is Simulator.omnigibson else ()
    return RemoteEnv(config, num_envs, python or sys.executable, progress, known)


def is_apart(config: EnvConfig, python: str | None) -> bool:
    """Whether the simulator gets a process of its own."""
    if config.own_process is not None:
        return config.own_process
    return python not in (None, sys.executable) or config.simulator in OWN_PROCESS


def make_here(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """The same, in this process."""
    if config.simulator is Simulator.omnigibson:
        from rlrun.envs.omnigibson.omnigibson_env import OmniGibsonVectorEnv

        return OmniGibsonVectorEnv(config, num_envs, progress)
    drop_unlisted_device()
    if config.simulator is Simulator.gymnasium:
        from rlrun.envs.gymnasium.gymnasium_env import make_gymnasium

        return make_gymnasium(config, num_envs, progress)
    if config.simulator is Simulator.libero:
        from rlrun.envs.libero.libero_env import make_libero

        return make_libero(config, num_envs, progress)
    from rlrun.envs.embedded.mujoco_env import MujocoVectorEnv

    return MujocoVectorEnv(config, num_envs, progress)
