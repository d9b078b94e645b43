"""The keys of policy.smolvla."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.bounds import COUNT, POSITIVE, POSITIVE_SHARE, bounded
from rlrun.config.sealing import Section


@dataclass
class SmolVLASettings(Section):
    """Settings for policy.kind=smolvla; the sizes apply to a new policy."""

    num_flow_steps: int = bounded(4, COUNT)  # K, Euler steps from noise to actions, in rollout and update alike
    noise_level: float = bounded(0.5, POSITIVE)  # of Flow-SDE: the deviation of the random step is proportional to it
    # Reinforcement learning trains the action expert and the critic only; the VLM stays as imitation left it.
    train_expert_only: bool = True
    tokenizer_path: str | None = None  # tokenizer.json of the VLM, for a folder without one, as LeRobot writes them
    patch_size: int = bounded(16, COUNT)
    vision_hidden_size: int = bounded(96, COUNT)
    vision_num_layers: int = bounded(3, COUNT)
    vision_num_heads: int = bounded(4, COUNT)
    llm_hidden_size: int = bounded(96, COUNT)
    llm_intermediate_size: int = bounded(256, COUNT)
    llm_num_layers: int = bounded(4, COUNT)
    llm_num_heads: int = bounded(3, COUNT)
    expert_width_multiplier: float = bounded(0.75, POSITIVE_SHARE)
