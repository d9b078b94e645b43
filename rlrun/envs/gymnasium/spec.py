"""Spec and settings of Gymnasium's environments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import FINITE, Section, bounded, for_demonstrations, named
from rlrun.config.simulator_process import ProcessSpec
from rlrun.config.simulator_spec import EvaluationSpec, PlannedSpaces, ResourceSpec, SimulatorSpec, Splits, WorldSpec
from rlrun.envs import opengl
from rlrun.system.errors import ExitStatus, RunError


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
    expert: str | None = for_demonstrations(None)  # module:FUNCTION of expert(env, observation) -> action; None: none
    has_whole_seeds: bool = False  # reset(seed=…) gets numbers beyond 2^32 in training, as in runs before this key
    has_shadows: bool = False  # of MuJoCo's lights; without them software draws four times as fast or more


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return upper bounds: only a running environment knows its sizes, and most have less."""
    named = env.section(GymnasiumConfig).image_keys
    num_images = 1 if named is None else len(named)
    return PlannedSpaces(num_images, num_proprio=400, num_actions=32, cameras=tuple(named or ()), is_exact=False)


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for each key that would have no effect."""
    settings = config.env.section(GymnasiumConfig)
    if settings.maker is not None and settings.vectorization not in (None, Vectorization.sync, Vectorization.async_):
        yield RunError(
            "A maker's environments are sync or async.",
            key="env.gymnasium.vectorization",
            value=settings.vectorization.value if settings.vectorization else None,
            cause="It is called with use_async_envs, which is true or false.",
            remedy="Take sync or async.",
        )
    if settings.maker_task is not None and settings.maker is None:
        yield RunError(
            "'env.gymnasium.maker_task' would have no effect.",
            key="env.gymnasium.maker_task",
            value=settings.maker_task,
            cause="env.gymnasium.maker is null.",
            remedy="Name a maker, or drop it.",
        )
    if config.env.action_delay and settings.vectorization is not None:
        yield delayed_together(config.env.action_delay)
    if settings.is_observed_as_pixels and (settings.image_keys or settings.state_keys):
        yield RunError(
            "Keys of the observation would have no effect.",
            key="env.gymnasium.image_keys",
            value=settings.image_keys,
            cause="env.gymnasium.is_observed_as_pixels=true takes a rendered frame in place of the observation.",
            remedy="Drop one of them.",
        )


def delayed_together(action_delay: int) -> RunError:
    """Return the refusal of late actions in a vector environment."""
    return RunError(
        "The rows of a vector environment cannot act late.",
        key="env.action_delay",
        value=action_delay,
        cause="They step together, and a row that begins an episode waits for its first actions while others go on.",
        remedy="Set env.gymnasium.vectorization=null, which makes single environments, or env.action_delay=0.",
        exit_status=ExitStatus.bad_config,
    )


def meaning_of_success(settings: GymnasiumConfig) -> str:
    """Return the definition of success. Example: "the environment says so at any step; else a return of 475"."""
    when = "its last step" if settings.success is SuccessRule.last else "any step"
    needed = "the registered threshold" if settings.success_return is None else f"{settings.success_return:g}"
    return f"the environment says so at {when} of the episode; if it never says, a return of {needed}"


def splits(env: EnvConfig) -> Splits:
    """Return the usual splits, and what differs from the environment as Gymnasium registers it."""
    return Splits(deviations=tuple(_deviations(env)))


def own_limit(env: EnvConfig) -> int | None:
    """Return the registered time limit. None: there is none, or its module was not imported in this process."""
    import gymnasium  # here, since a plan reads this file and must start at once

    settings = env.section(GymnasiumConfig)
    registered = None if settings.maker is not None else gymnasium.registry.get(settings.id.rpartition(":")[2])
    return None if registered is None else registered.max_episode_steps


def _deviations(env: EnvConfig) -> Iterator[str]:
    settings = env.section(GymnasiumConfig)
    if settings.maker is not None or ":" in settings.id:
        return  # its registration is a module of somebody else, which only env workers import
    limit = own_limit(env)
    if limit is not None and env.max_control_steps < limit:
        yield f"episodes end after {env.max_control_steps} control steps, as registered after {limit}"
    if settings.kwargs:
        yield f"made with {', '.join(f'{key}={value}' for key, value in settings.kwargs.items())}"
    if settings.is_observed_as_pixels:
        yield "observed as a picture"
    if settings.success_return is not None:
        yield f"a return of {settings.success_return:g} counts as success"


SPEC = SimulatorSpec(
    "gymnasium",
    "rlrun.envs.gymnasium.making:make_gymnasium",
    WorldSpec(
        planned_spaces,
        has_expert=lambda env: env.section(GymnasiumConfig).expert is not None,
        own_limit=own_limit,
    ),
    GymnasiumConfig,
    checks,
    ResourceSpec(node_checks="rlrun.doctor.simulator_checks:SPACES"),
    ProcessSpec(packages=("gymnasium", "mujoco"), variables=opengl.VARIABLES, environment=opengl.environment),
    EvaluationSpec(
        meaning_of_success=lambda env: meaning_of_success(env.section(GymnasiumConfig)),
        splits=splits,
    ),
)
