"""The algorithms of rlrun: their keys, rollout rules and checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlrun.algorithms.settings import GRPOConfig, PPOConfig
from rlrun.algorithms.spec import AlgorithmSpec, RolloutRule
from rlrun.config.checks import nearest_divisor
from rlrun.config.schema import AlgorithmConfig, RunConfig
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm


def _ppo(config: AlgorithmConfig) -> Algorithm:
    from rlrun.algorithms.ppo import PPO as Class  # imports torch

    return Class(config)


def _grpo(config: AlgorithmConfig) -> Algorithm:
    from rlrun.algorithms.grpo import GRPO as Class  # imports torch

    return Class(config)


def _grpo_rule(config: AlgorithmConfig) -> RolloutRule:
    return RolloutRule(needs_values=False, one_episode=True, group_size=config.section(GRPOConfig).group_size)


def check_groups(config: RunConfig) -> Iterator[RunError]:
    """GRPO compares whole episodes of a group, and each group belongs to one actor rank."""
    algorithm, size = config.algorithm, config.algorithm.section(GRPOConfig).group_size
    per_rank = config.env.num_envs // config.actor.num_workers
    if size < 2:
        yield RunError(
            "GRPO needs groups of at least two envs.",
            key="algorithm.grpo.group_size",
            value=size,
            cause="The advantage is the return relative to the rest of the group.",
            remedy="Take 4 or 8.",
        )
    if per_rank % size:
        yield RunError(
            f"Groups of {size} envs would be cut across actor ranks of {per_rank} envs.",
            key="algorithm.grpo.group_size",
            value=size,
            cause=f"env.num_envs ({config.env.num_envs}) / actor.num_workers ({config.actor.num_workers}) "
            f"is {per_rank}, no multiple of {size}.",
            remedy=f"Take {nearest_divisor(per_rank, size)}, or more envs.",
        )
    steps = algorithm.horizon * config.policy.num_action_chunks
    if steps < config.env.max_control_steps:
        yield RunError(
            "GRPO would see episodes without their end.",
            key="algorithm.horizon",
            value=algorithm.horizon,
            cause=f"{algorithm.horizon} chunks of {config.policy.num_action_chunks} control steps are {steps}, "
            f"fewer than env.max_control_steps ({config.env.max_control_steps}).",
            remedy=f"Take at least {-(-config.env.max_control_steps // config.policy.num_action_chunks)}.",
        )
    if algorithm.carry_episodes:
        yield RunError(
            "GRPO cannot carry episodes over.",
            key="algorithm.carry_episodes",
            value=True,
            cause="Episodes of a group start together, from one reset seed.",
            remedy="Set algorithm.carry_episodes=false, or algorithm.name=ppo.",
        )


PPO = AlgorithmSpec("ppo", _ppo, section=PPOConfig)
GRPO = AlgorithmSpec("grpo", _grpo, _grpo_rule, GRPOConfig, has_critic=False, check=check_groups)
