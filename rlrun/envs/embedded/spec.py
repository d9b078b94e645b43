"""Spec and settings of the embedded world."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import NOT_NEGATIVE, SHARE, bounded
from rlrun.config.simulator_process import ProcessSpec
from rlrun.config.simulator_spec import EvaluationSpec, ResourceSpec, SimulatorSpec, SimulatorTime, WireSpec, WorldSpec
from rlrun.envs import opengl, r1pro_keys
from rlrun.system.errors import RunError

ACTIVITIES = ("turning_on_radio", "picking_up_trash")


class Perturbation(Enum):
    """The change of the training world in which a policy is tested (rlrun.certify)."""

    none = "none"
    camera = "camera"  # cameras moved by 3 cm, turned by 4 degrees, with a wider field of view
    light = "light"  # about half of the light, from the side; ray casting has no lights
    texture = "texture"  # floor, walls and table have other colours
    pose = "pose"  # start poses from 1.5 times the range
    wording = "wording"  # the instruction in other words


@dataclass
class EmbeddedConfig(r1pro_keys.R1ProConfig):
    """Settings for env.simulator=embedded."""

    section_name = "embedded"

    reward_shaping: float = bounded(0.5, NOT_NEGATIVE)  # total for start to goal, under reward=dense
    reset_spread: float = bounded(1.0, SHARE)  # 0: every episode starts alike; 1: the full range of start poses
    cans_on_floor: bool = False  # picking_up_trash: cans start on the floor instead of the table
    perturbation: Perturbation = Perturbation.none  # of the world, to test a policy in; see docs/certify.md


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for each setting that the embedded world does not support."""
    yield from r1pro_keys.checks(config)
    own = config.env.section(EmbeddedConfig)
    if own.activity not in ACTIVITIES:
        yield RunError(
            f"The embedded world has no activity '{own.activity}'.",
            key=own.key("activity"),
            value=own.activity,
            cause=f"It has {' and '.join(ACTIVITIES)}.",
            remedy="Take one of them, or env.simulator=omnigibson.",
        )


def _perturbed_worlds(env: EnvConfig) -> dict[str, EnvConfig]:
    """Return the world in each of its perturbations, by name."""
    settings = env.section(EmbeddedConfig)
    return {
        perturbation.value: dataclasses.replace(
            env, sections={**env.sections, "embedded": dataclasses.replace(settings, perturbation=perturbation)}
        )
        for perturbation in Perturbation
        if perturbation is not Perturbation.none
    }


SPEC = SimulatorSpec(
    "embedded",
    "rlrun.envs.embedded.mujoco_env:MujocoVectorEnv",
    WorldSpec(
        r1pro_keys.planned_spaces,
        is_r1pro=True,
        has_expert=lambda env: True,
    ),
    EmbeddedConfig,
    checks,
    ResourceSpec(
        time=lambda env: SimulatorTime(env_step_s=0.0002, picture_s=0.003),  # measured with 64 pixels, drawn by the CPU
        node_checks="rlrun.doctor.simulator_checks:WORLD_RENDERER",
    ),
    ProcessSpec(packages=("mujoco", "bddl"), variables=opengl.VARIABLES, environment=opengl.environment),
    EvaluationSpec(perturbations=_perturbed_worlds),
    WireSpec(r1pro_keys.conventions),
)
