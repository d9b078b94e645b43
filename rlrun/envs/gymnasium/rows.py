"""Makes the rows of `env.gymnasium`: single environments, one after another, or the rows of a vector environment."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from rlrun.config.schema import EnvConfig
from rlrun.envs.foreign_code import close_or_warn
from rlrun.envs.gymnasium.gymnasium_env import GymnasiumEnv
from rlrun.envs.gymnasium.making import of_maker, single_of_id, vector_of_id
from rlrun.envs.gymnasium.settings import GymnasiumConfig
from rlrun.envs.gymnasium.vector_rows import VectorRows
from rlrun.envs.pictures import draw_without_display
from rlrun.envs.rows import RowsEnv
from rlrun.envs.vector_env import VectorEnv


def make_gymnasium(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """Make the `num_envs` rows of `env.gymnasium`. Raises RunError if they cannot be made or their actions differ."""
    draw_without_display(config.renderer)
    own = config.section(GymnasiumConfig)
    if own.maker is not None:
        made = of_maker(own, num_envs)
        if isinstance(made, GymnasiumVectorEnv):
            return VectorRows(made, config, progress)
        close_or_warn(made.close, "the first environment")
        return _singles(config, num_envs, progress, lambda: of_maker(own, 1))
    if own.vectorization is not None:
        return VectorRows(vector_of_id(own, num_envs), config, progress)
    return _singles(config, num_envs, progress, lambda: single_of_id(own))


def _singles(
    config: EnvConfig, num_envs: int, progress: Callable[[], None], make: Callable[[], gymnasium.Env]
) -> VectorEnv:
    probe = GymnasiumEnv(config, make())
    found = probe.spaces()
    close_or_warn(probe.close, "the first environment")
    names = [f"action/{i}" for i in range(found.num_actions)]
    limit = config.max_control_steps
    return RowsEnv(lambda: GymnasiumEnv(config, make()), num_envs, found, names, config.image_size, limit, progress)
