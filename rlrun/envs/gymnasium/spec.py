"""The spec of Gymnasium's environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.simulator_spec import PlannedSpaces, SimulatorSpec
from rlrun.envs import opengl
from rlrun.envs.gymnasium.settings import GymnasiumConfig, SuccessRule, Vectorization
from rlrun.system.errors import RunError


def make_gymnasium(config: EnvConfig, num_envs: int, progress: Callable[[], None]) -> Any:
    """Make `num_envs` rows of `env.gymnasium.id`, or of the environment that `env.gymnasium.maker` makes."""
    from rlrun.envs.opengl import drop_unlisted_device

    drop_unlisted_device()
    from rlrun.envs.gymnasium import making

    return making.make_gymnasium(config, num_envs, progress)


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return upper bounds: only a running environment knows its sizes, and most have less."""
    named = env.section(GymnasiumConfig).image_keys
    num_images = 1 if named is None else len(named)
    return PlannedSpaces(num_images, num_proprio=400, num_actions=32, cameras=tuple(named or ()), is_exact=False)


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
        )
    if own.maker_task is not None and own.maker is None:
        yield RunError(
            "'env.gymnasium.maker_task' would have no effect.",
            key="env.gymnasium.maker_task",
            value=own.maker_task,
            cause="env.gymnasium.maker is null.",
            remedy="Name a maker, or drop it.",
        )
    if own.is_observed_as_pixels and (own.image_keys or own.state_keys):
        yield RunError(
            "Keys of the observation would have no effect.",
            key="env.gymnasium.image_keys",
            value=own.image_keys,
            cause="env.gymnasium.is_observed_as_pixels=true takes a rendered frame in place of the observation.",
            remedy="Drop one of them.",
        )


def meaning_of_success(own: GymnasiumConfig) -> str:
    """Say what the success rate counts. Example: "the environment says so at any step; else a return of 475"."""
    when = "its last step" if own.success is SuccessRule.last else "any step"
    needed = "the registered threshold" if own.success_return is None else f"{own.success_return:g}"
    return f"the environment says so at {when} of the episode; if it never says, a return of {needed}"


SPEC = SimulatorSpec(
    "gymnasium",
    make_gymnasium,
    planned_spaces,
    GymnasiumConfig,
    image_names=lambda env: env.section(GymnasiumConfig).image_keys,
    packages=("gymnasium", "mujoco"),
    has_expert=lambda env: env.section(GymnasiumConfig).expert is not None,
    meaning_of_success=lambda env: meaning_of_success(env.section(GymnasiumConfig)),
    checks=checks,
    variables=opengl.VARIABLES,
    environment=opengl.environment,
    node_checks="rlrun.doctor.simulator_checks:SPACES",
)
