"""The settings of PPO and GRPO."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.sections import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Section, bounded


@dataclass
class PPOConfig(Section):
    """Settings of algorithm.name=ppo."""

    gae_lambda: float = bounded(0.95, SHARE)
    normalize_advantages: bool = True  # to mean 0 and standard deviation 1, over all ranks
    critic_warmup_steps: int = bounded(0, NOT_NEGATIVE)  # first training steps, in which only the value head trains
    value_clip: float = bounded(0.2, POSITIVE)
    huber_delta: float = bounded(10.0, POSITIVE)
    value_coef: float = bounded(0.5, NOT_NEGATIVE)


@dataclass
class GRPOConfig(Section):
    """Settings of algorithm.name=grpo."""

    group_size: int = bounded(8, COUNT)  # envs that share a reset seed
