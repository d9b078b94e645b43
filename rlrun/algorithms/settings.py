"""The settings of PPO and GRPO."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.sections import COUNT, FINITE, NOT_NEGATIVE, POSITIVE, POSITIVE_SHARE, SHARE, Section, bounded


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


@dataclass
class DsrlConfig(Section):
    """Settings of soft actor-critic over the first noise."""

    batch_size: int = bounded(256, COUNT)  # transitions of one step, over all actor ranks
    num_updates: int = bounded(200, COUNT)  # steps of critics and noise actor per training step
    warmup_steps: int = bounded(2, NOT_NEGATIVE)  # training steps that only collect
    replay_size: int = bounded(50_000, COUNT)  # transitions that each actor rank keeps
    num_critics: int = bounded(2, COUNT)  # the smallest of their values is used
    hidden_sizes: list[int] = bounded([256, 256], COUNT)  # of each critic
    critic_lr: float = bounded(3e-4, POSITIVE)
    tau: float = bounded(0.005, POSITIVE_SHARE)  # share of the critics that goes into their targets per step
    initial_alpha: float = bounded(0.01, POSITIVE)  # weight of the entropy at first
    alpha_lr: float = bounded(1e-3, NOT_NEGATIVE)  # 0: the weight stays
    target_entropy: float = bounded(-0.5, FINITE)  # per number of the noise over its bound, in nats
