"""The spec of the embedded world."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.simulator_spec import SimulatorSpec
from rlrun.envs import opengl, r1pro_keys
from rlrun.envs.embedded.settings import EmbeddedConfig
from rlrun.system.errors import RunError

ACTIVITIES = ("turning_on_radio", "picking_up_trash")


def make_embedded(config: EnvConfig, num_envs: int, progress: Callable[[], None]) -> Any:
    """Make `num_envs` rows of the activity `env.activity`."""
    from rlrun.envs.opengl import drop_unlisted_device

    opengl.drop_unusable(os.environ)  # importing MuJoCo would raise
    opengl.drop_other_platform(os.environ)
    from rlrun.envs.embedded.mujoco_env import MujocoVectorEnv

    drop_unlisted_device()
    return MujocoVectorEnv(config, num_envs, progress)


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for each setting that the embedded world does not support."""
    yield from r1pro_keys.checks(config)
    if config.env.activity not in ACTIVITIES:
        yield RunError(
            f"The embedded world has no activity '{config.env.activity}'.",
            key="env.activity",
            value=config.env.activity,
            cause=f"It has {' and '.join(ACTIVITIES)}.",
            remedy="Take one of them, or env.simulator=omnigibson.",
        )


SPEC = SimulatorSpec(
    "embedded",
    make_embedded,
    r1pro_keys.planned_spaces,
    EmbeddedConfig,
    has_expert=lambda env: True,
    is_r1pro=True,
    cameras=r1pro_keys.CAMERAS,
    packages=("mujoco", "bddl"),
    checks=checks,
    node_checks="rlrun.doctor.simulator_checks:WORLD_RENDERER",
    variables=opengl.VARIABLES,
    environment=opengl.environment,
)
