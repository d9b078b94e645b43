"""rlrun: reinforcement learning of vision-language-action policies in simulation, on unlike machines.

The Python interface is imported when it is first used: `load_config`, `load_policy`, `make_env`, `run`.
"""

from __future__ import annotations

from rlrun.system import import_path

if import_path.is_program():  # before any module is looked for
    import_path.put_working_folder_last()

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlrun.envs.simulator_env import SimulatorEnv
    from rlrun.interface import (
        Callback,
        LoadedPolicy,
        RunError,
        RunResult,
        load_config,
        load_policy,
        make_env,
        run,
    )

__version__ = "0.4.0"
__all__ = [
    "Callback",
    "LoadedPolicy",
    "RunError",
    "RunResult",
    "SimulatorEnv",
    "load_config",
    "load_policy",
    "make_env",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rlrun' has no attribute '{name}'")
    if name == "SimulatorEnv":  # it needs Gymnasium
        from rlrun.envs.simulator_env import SimulatorEnv

        return SimulatorEnv
    from rlrun import interface

    return getattr(interface, name)
