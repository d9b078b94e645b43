"""Makes a simulator from a configuration, in this process or in one of its own; all callers use it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_spec import SimulatorSpec, simulator_spec
from rlrun.envs.foreign_code import questions_told, simulator_code
from rlrun.envs.vector_env import VectorEnv


def make_env(
    config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None, python: str | None = None
) -> VectorEnv:
    """Make `num_envs` rows of the simulator that `config` names.

    progress: called after every loaded part; loading may take minutes, and must show signs of progress.
    python: the interpreter that has the simulator; None: this one.
    Raises ValueError for an unknown activity, part or camera, and RuntimeError if the
    simulator cannot run here; both name the key and the remedy.
    """
    spec = simulator_spec(config)
    if not is_apart(config, python):
        with simulator_code():
            return make_here(spec, config, num_envs, progress)
    from rlrun.envs.remote.remote_env import RemoteEnv

    return RemoteEnv(config, num_envs, python or sys.executable, progress)


def is_apart(config: EnvConfig, python: str | None) -> bool:
    """Return whether the simulator gets a process of its own."""
    if config.own_process is not None:
        return config.own_process
    return python not in (None, sys.executable) or simulator_spec(config).needs_own_process


def make_here(
    spec: SimulatorSpec, config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None
) -> VectorEnv:
    """Make the simulator in this process. Raises TypeError if the spec's function returns no VectorEnv."""
    with questions_told():
        env = spec.make(config, num_envs, progress)
    if not isinstance(env, VectorEnv):
        raise TypeError(f"the simulator {spec.name} made {type(env).__name__}, which is no VectorEnv")
    return env
