"""Makes environments of Gymnasium's registry, single or vectorised, or those of a function like LeRobot's make_env."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.wrappers import OrderEnforcing

from rlrun.config.schema import EnvConfig
from rlrun.config.sections import load_object
from rlrun.envs.gymnasium.gymnasium_env import GymnasiumEnv
from rlrun.envs.gymnasium.spec import GymnasiumConfig, Vectorization
from rlrun.envs.gymnasium.vector_rows import VectorRows
from rlrun.envs.make import close_or_warn, last_lines, questions_refused
from rlrun.envs.pictures import draw_without_display
from rlrun.envs.rows import RowsEnv
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError

log = logging.getLogger(__name__)

MAX_LINES = 12  # of a traceback
# the rows count the steps; Gymnasium's checker warns at every step, about matters that rlrun cannot change
_OURS = {"max_episode_steps": -1, "disable_env_checker": True}


def single_of_id(settings: GymnasiumConfig) -> gymnasium.Env:
    """Make the environment `env.gymnasium.id`, without its time limit. Raises RunError if that fails."""
    try:
        made = _drawing(lambda **kwargs: gymnasium.make(settings.id, **kwargs), _OURS | settings.kwargs)
    except RunError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise RunError(
            f"Gymnasium cannot make {settings.id}.",
            key="env.gymnasium.id",
            value=settings.id,
            cause=_cause(error),
            remedy="Check the id, env.gymnasium.kwargs, and that its package is installed; 'module:Name-v0' "
            "imports the module first.",
            exit_status=ExitStatus.bad_config,
        ) from error
    return made.env if isinstance(made, OrderEnforcing) else made  # rows are never stepped before a reset


def vector_of_id(settings: GymnasiumConfig, num_envs: int) -> GymnasiumVectorEnv:
    """Make a vector environment of `env.gymnasium.id`. Raises RunError if that fails."""
    assert settings.vectorization is not None
    mode = settings.vectorization.value
    is_own = settings.vectorization is Vectorization.vector_entry_point
    ours = {} if is_own else {"vector_kwargs": {"autoreset_mode": AutoresetMode.DISABLED}} | _OURS
    try:
        return _drawing(
            lambda **kwargs: gymnasium.make_vec(settings.id, num_envs, vectorization_mode=mode, **kwargs),
            ours | settings.kwargs,
        )
    except RunError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise RunError(
            f"Gymnasium cannot make a vector environment of {settings.id}.",
            key="env.gymnasium.vectorization",
            value=mode,
            cause=_cause(error),
            remedy="Check env.gymnasium.id and kwargs; every environment has vectorization=sync.",
            exit_status=ExitStatus.bad_config,
        ) from error


def _drawing(make: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    """Make an environment that renders arrays, or one without a render mode if it has none, or not this one."""
    if "render_mode" not in kwargs:
        try:
            with questions_refused():
                return make(render_mode="rgb_array", **kwargs)
        except (RunError, ImportError, gymnasium.error.UnregisteredEnv):
            raise
        except Exception as error:  # TypeError, AssertionError, an error of its OpenGL: each says it in its own way
            log.info("made without render_mode, since with rgb_array: %s: %s", type(error).__name__, error)
    with questions_refused():
        return make(**kwargs)


def of_maker(settings: GymnasiumConfig, num_envs: int) -> Any:
    """Call `env.gymnasium.maker` with LeRobot's three arguments. Returns an environment, or a vector environment."""
    is_async = settings.vectorization is Vectorization.async_
    try:
        with questions_refused():
            made = load_object(str(settings.maker))(
                n_envs=num_envs, use_async_envs=is_async, cfg=dict(settings.kwargs) or None
            )
    except RunError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise RunError(
            f"{settings.maker} makes no environment.",
            key="env.gymnasium.maker",
            value=settings.maker,
            cause=_cause(error),
            remedy="Name module:FUNCTION of a function make_env(n_envs, use_async_envs, cfg).",
            exit_status=ExitStatus.bad_config,
        ) from error
    by_task = _flat(made)
    wanted = settings.maker_task or ""
    if wanted not in by_task and len(by_task) == 1 and settings.maker_task is None:
        (wanted,) = by_task
    if wanted not in by_task:
        raise RunError(
            f"{settings.maker} makes {len(by_task)} environments, and none is '{wanted}'.",
            key="env.gymnasium.maker_task",
            value=settings.maker_task,
            cause=f"They are {', '.join(by_task)}.",
            remedy="Name one of them.",
            exit_status=ExitStatus.bad_config,
        )
    for name, env in by_task.items():
        if name != wanted:
            env.close()
    return by_task[wanted]


def _flat(made: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a mapping. Example: {"libero_10": {0: env}} -> {"libero_10/0": env}; a lone environment is named ""."""
    if not isinstance(made, Mapping):
        return {prefix: made}
    flat: dict[str, Any] = {}
    for name, below in made.items():
        flat |= _flat(below, f"{prefix}/{name}" if prefix else str(name))
    return flat


def _cause(error: Exception) -> str:
    """Return the message of an error; of one that the environment itself raised, with the end of its traceback."""
    if isinstance(error, (gymnasium.error.Error, ImportError, TypeError)):
        return f"{type(error).__name__}: {error}"
    return last_lines(error, MAX_LINES)


def make_gymnasium(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """Make the `num_envs` rows of `env.gymnasium`. Raises RunError if they cannot be made or their actions differ."""
    draw_without_display(config.renderer)
    settings = config.section(GymnasiumConfig)
    if settings.maker is not None:
        made = of_maker(settings, num_envs)
        if isinstance(made, GymnasiumVectorEnv):
            return VectorRows(made, config, progress)
        close_or_warn(made.close, "the first environment")
        return _singles(config, num_envs, progress, lambda: of_maker(settings, 1))
    if settings.vectorization is not None:
        return VectorRows(vector_of_id(settings, num_envs), config, progress)
    return _singles(config, num_envs, progress, lambda: single_of_id(settings))


def _singles(
    config: EnvConfig, num_envs: int, progress: Callable[[], None], make: Callable[[], gymnasium.Env]
) -> VectorEnv:
    probe = GymnasiumEnv(config, make())
    spaces = probe.spaces()
    close_or_warn(probe.close, "the first environment")
    limit = config.max_control_steps
    made = lambda: GymnasiumEnv(config, make())  # noqa: E731
    return RowsEnv(made, num_envs, spaces, config.image_size, limit, progress, config.info)
