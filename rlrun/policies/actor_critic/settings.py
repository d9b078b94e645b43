"""The keys of policy.mlp and policy.cnn."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.sections import COUNT, Range, Section, bounded


@dataclass
class MlpSettings(Section):
    """Settings for policy.kind=mlp."""

    hidden_sizes: list[int] = bounded([64, 64], COUNT)
    initial_log_std: float = bounded(0.0, Range(-5, 2))  # of continuous actions, whose limits are -1 and 1
    normalize_observations: bool = False  # normalize proprioception by its running mean and deviation


@dataclass
class CnnSettings(MlpSettings):
    """Settings for policy.kind=cnn."""

    conv_channels: list[int] = bounded([16, 32, 64], COUNT)  # channels of each layer; each halves the image
