"""The settings of algorithm.name=dsrl."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.sections import COUNT, FINITE, NOT_NEGATIVE, POSITIVE, POSITIVE_SHARE, Section, bounded


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
