"""The settings of Gymnasium's environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rlrun.config.sections import FINITE, Section, bounded, named


class Vectorization(Enum):
    """How gymnasium.make_vec vectorizes environments."""

    sync = "sync"  # one after another, in this process
    async_ = "async"  # a process for each env
    vector_entry_point = "vector_entry_point"  # the environment's own vector implementation


class SuccessRule(Enum):
    """At which step of an episode the environment's word for success counts."""

    last = "last"
    any = "any"


@dataclass
class GymnasiumConfig(Section):
    """Settings for env.simulator=gymnasium."""

    id: str = named("HalfCheetah-v5")  # environment of Gymnasium's registry; "module:Name-v0" imports the module first
    kwargs: dict[str, Any] = field(default_factory=dict)  # of gymnasium.make or make_vec; with `maker`, its cfg
    vectorization: Vectorization | None = None  # mode of gymnasium.make_vec; None: single envs, one after another
    maker: str | None = None  # module:FUNCTION in place of `id`, like LeRobot's make_env(n_envs, use_async_envs, cfg)
    maker_task: str | None = None  # suite/task, if `maker` returns several; None: it returns one environment
    image_keys: list[str] | None = named(None)  # cameras of a Dict observation, in order, "a.b" if nested; None: all
    state_keys: list[str] | None = named(None)  # proprioception of a Dict observation, in order; None: all numbers
    instruction_key: str | None = named(None)  # key of the instruction text; None: the only text of the observation
    instruction: str | None = named(None)  # of all episodes; None: the observation's, else the task, else the id
    is_observed_as_pixels: bool = False  # observe one rendered frame of env.image_size instead of the observation
    success: SuccessRule | None = None  # last or any step with success counts; None: any, the last where it ends there
    success_return: float | None = bounded(None, FINITE)  # return of a solved episode; None: the environment decides
    expert: str | None = None  # module:FUNCTION of expert(env, observation) -> action, for rlrun.demos; None: no expert
    has_shadows: bool = False  # of MuJoCo's lights; without them software draws four times as fast or more
