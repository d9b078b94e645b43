"""What the algorithm is, before torch is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.algorithms.spec import AlgorithmSpec, RolloutRule
from rlrun.config.schema import RunConfig
from rlrun.config.sections import Section
from rlrun.system.errors import RunError


@dataclass
class ReinforcePlusConfig(Section):
    """For algorithm.name=reinforce_plus."""

    has_baseline: bool = True  # subtract the mean return of the other rows at the same chunk step


def check(config: RunConfig) -> Iterator[RunError]:
    if (
        config.algorithm.section(ReinforcePlusConfig).has_baseline
        and config.env.num_envs < 2 * config.actor.num_workers
    ):
        yield RunError(
            "A leave-one-out baseline needs two envs on every actor rank.",
            key="env.num_envs",
            value=config.env.num_envs,
            remedy=f"Take at least {2 * config.actor.num_workers}.",
        )


SPEC = AlgorithmSpec(
    "reinforce_plus",
    "reinforce_plus.algorithm:ReinforcePlus",
    rollout=lambda config: RolloutRule(needs_values=False),
    section=ReinforcePlusConfig,
    has_critic=False,
    check=check,
)
