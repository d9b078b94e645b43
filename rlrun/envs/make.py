"""The one place that turns a configuration into a simulator."""

from __future__ import annotations

from collections.abc import Callable

from rlrun.config.schema import EnvConfig, Simulator
from rlrun.envs.vector_env import VectorEnv


def make_env(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """`num_envs` rows of the simulator that `config` names.

    progress: called after every part that is loaded; loading may take minutes, but not silently.
    Raises ValueError for an unknown activity, part or camera, and RuntimeError where the
    simulator cannot run here; both name the key and the remedy.
    """
    if config.simulator is Simulator.omnigibson:
        raise RuntimeError(
            "env.simulator=omnigibson needs OmniGibson with Isaac Sim on an RTX GPU, "
            "which this version cannot drive yet; use env.simulator=mujoco"
        )
    from rlrun.envs.mujoco_env import MujocoVectorEnv

    return MujocoVectorEnv(config, num_envs, progress)
