"""Makes rows of Gymnasium's environments: single ones, one after another, or the rows of a vector environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from rlrun.config.python_path import load_object
from rlrun.config.schema import EnvConfig
from rlrun.envs.gymnasium.gymnasium_env import GymnasiumEnv
from rlrun.envs.gymnasium.settings import GymnasiumConfig, Vectorization
from rlrun.envs.gymnasium.vector_rows import VectorRows
from rlrun.envs.pictures import draw_without_display
from rlrun.envs.rows import RowsEnv
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


def make_gymnasium(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """Make the `num_envs` rows of `env.gymnasium`. Raises RunError if they cannot be made or their actions differ."""
    draw_without_display(config.renderer)
    own = config.section(GymnasiumConfig)
    if own.maker is not None:
        made = _made(own, num_envs)
        if isinstance(made, GymnasiumVectorEnv):
            return VectorRows(made, config, progress)
        made.close()
        return _singles(config, num_envs, progress, lambda: _made(own, 1))
    if own.vectorization is not None:
        return VectorRows(_vector(own, num_envs), config, progress)
    return _singles(config, num_envs, progress, None)


def _singles(
    config: EnvConfig, num_envs: int, progress: Callable[[], None], make: Callable[[], gymnasium.Env] | None
) -> VectorEnv:
    probe = GymnasiumEnv(config, make)
    found = probe.spaces()
    probe.close()
    names = [f"action/{i}" for i in range(found.num_actions)]
    limit = config.max_control_steps
    return RowsEnv(lambda: GymnasiumEnv(config, make), num_envs, found, names, config.image_size, limit, progress)


def _vector(own: GymnasiumConfig, num_envs: int) -> GymnasiumVectorEnv:
    assert own.vectorization is not None
    is_own = own.vectorization is Vectorization.vector_entry_point
    kwargs: dict[str, Any] = {} if is_own else {"vector_kwargs": {"autoreset_mode": AutoresetMode.DISABLED}}
    mode = own.vectorization.value
    try:
        return gymnasium.make_vec(own.id, num_envs, vectorization_mode=mode, **kwargs, **_single_kwargs(own, is_own))
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise RunError(
            f"Gymnasium cannot make a vector environment of {own.id}.",
            key="env.gymnasium.vectorization",
            value=mode,
            cause=f"{type(error).__name__}: {error}",
            remedy="Check env.gymnasium.id and kwargs; every environment has vectorization=sync.",
            exit_status=ExitStatus.bad_config,
            row="gymnasium-vector",
        ) from error


def _single_kwargs(own: GymnasiumConfig, is_vector: bool) -> dict[str, Any]:
    if is_vector:
        return {"render_mode": "rgb_array", **own.kwargs}
    # the rows count the steps; Gymnasium's checker warns about matters that rlrun cannot change
    return {"max_episode_steps": -1, "disable_env_checker": True, "render_mode": "rgb_array", **own.kwargs}


def _made(own: GymnasiumConfig, num_envs: int) -> Any:
    """Call `maker` with LeRobot's three arguments. Returns an environment, or suite -> task -> environment."""
    is_async = own.vectorization is Vectorization.async_
    try:
        made = load_object(str(own.maker))(n_envs=num_envs, use_async_envs=is_async, cfg=dict(own.kwargs) or None)
    except (ImportError, AttributeError, TypeError) as error:
        raise RunError(
            f"{own.maker} cannot be called.",
            key="env.gymnasium.maker",
            value=own.maker,
            cause=f"{type(error).__name__}: {error}",
            remedy="Name module:FUNCTION of a function make_env(n_envs, use_async_envs, cfg).",
            exit_status=ExitStatus.bad_config,
            row="gymnasium-maker",
        ) from error
    found = _flat(made)
    wanted = own.maker_task or ""
    if wanted not in found and len(found) == 1 and own.maker_task is None:
        (wanted,) = found
    if wanted not in found:
        raise RunError(
            f"{own.maker} makes {len(found)} environments, and none is '{wanted}'.",
            key="env.gymnasium.maker_task",
            value=own.maker_task,
            cause=f"They are {', '.join(found)}.",
            remedy="Name one of them.",
            exit_status=ExitStatus.bad_config,
            row="gymnasium-maker",
        )
    for name, env in found.items():
        if name != wanted:
            env.close()
    return found[wanted]


def _flat(made: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a mapping. Example: {"libero_10": {0: env}} -> {"libero_10/0": env}; a lone environment is named ""."""
    if not isinstance(made, Mapping):
        return {prefix: made}
    flat: dict[str, Any] = {}
    for name, below in made.items():
        flat |= _flat(below, f"{prefix}/{name}" if prefix else str(name))
    return flat
