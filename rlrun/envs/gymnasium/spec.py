"""The spec of Gymnasium's environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rlrun.config.bounds import FINITE, bounded
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sealing import Section
from rlrun.config.simulator_spec import PlannedSpaces, SimulatorSpec
from rlrun.envs import opengl_settings
from rlrun.system.errors import RunError


class Vectorization(Enum):
    """How gymnasium.make_vec vectorizes environments."""

    sync = "sync"  # one after another, in this process
    async_ = "async"  # a process for each env
    vector_entry_point = "vector_entry_point"  # the environment's own vector implementation


@dataclass
class GymnasiumConfig(Section):
    """Settings for env.simulator=gymnasium."""

    id: str = "HalfCheetah-v5"  # environment of Gymnasium's registry; "module:Name-v0" imports the module first
    kwargs: dict[str, Any] = field(default_factory=dict)  # of gymnasium.make or make_vec; with `maker`, its cfg
    vectorization: Vectorization | None = None  # mode of gymnasium.make_vec; None: single envs, one after another
    maker: str | None = None  # module:FUNCTION in place of `id`, like LeRobot's make_env(n_envs, use_async_envs, cfg)
    maker_task: str | None = None  # suite/task, if `maker` returns several; None: it returns one environment
    image_keys: list[str] | None = None  # cameras of a Dict observation, in order, "a.b" if nested; None: all pictures
    state_keys: list[str] | None = None  # proprioception of a Dict observation, in order; None: all other numbers
    instruction_key: str | None = None  # key of the instruction text; None: the only text of the observation
    instruction: str | None = None  # of all episodes; None: the observation's, else the environment's task, else the id
    is_observed_as_pixels: bool = False  # observe one rendered frame of env.image_size instead of the observation
    success_return: float | None = bounded(None, FINITE)  # return of a solved episode; None: the environment decides


def make_gymnasium(config: EnvConfig, num_envs: int, progress: Callable[[], None]) -> Any:
    """Make `num_envs` rows of `env.gymnasium.id`, or of the environment that `env.gymnasium.maker` makes."""
    from rlrun.envs.egl_device import drop_unlisted_device

    drop_unlisted_device()
    from rlrun.envs.gymnasium import rows

    return rows.make_gymnasium(config, num_envs, progress)


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return upper bounds: only a running environment knows its sizes, and most have less."""
    named = env.section(GymnasiumConfig).image_keys
    return PlannedSpaces(num_images=1 if named is None else len(named), num_proprio=400, num_actions=32)


def has_shared_step(env: EnvConfig) -> bool:
    """Return whether the rows are those of a vector environment."""
    own = env.section(GymnasiumConfig)
    return own.vectorization is not None or own.maker is not None


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for each key that would have no effect."""
    own = config.env.section(GymnasiumConfig)
    if own.maker is not None and own.vectorization not in (None, Vectorization.sync, Vectorization.async_):
        yield RunError(
            "A maker's environments are sync or async.",
            key="env.gymnasium.vectorization",
            value=own.vectorization.value if own.vectorization else None,
            cause="It is called with use_async_envs, which is true or false.",
            remedy="Take sync or async.",
            row="gymnasium-settings",
        )
    if own.maker_task is not None and own.maker is None:
        yield RunError(
            "'env.gymnasium.maker_task' would have no effect.",
            key="env.gymnasium.maker_task",
            value=own.maker_task,
            cause="env.gymnasium.maker is null.",
            remedy="Name a maker, or drop it.",
            row="gymnasium-settings",
        )
    if own.is_observed_as_pixels and (own.image_keys or own.state_keys):
        yield RunError(
            "Keys of the observation would have no effect.",
            key="env.gymnasium.image_keys",
            value=own.image_keys,
            cause="env.gymnasium.is_observed_as_pixels=true takes a rendered frame in place of the observation.",
            remedy="Drop one of them.",
            row="gymnasium-settings",
        )


SPEC = SimulatorSpec(
    "gymnasium",
    make_gymnasium,
    planned_spaces,
    GymnasiumConfig,
    packages=("gymnasium", "mujoco"),
    has_shared_step=has_shared_step,
    checks=checks,
    variables=opengl_settings.VARIABLES,
    environment=opengl_settings.environment,
)
