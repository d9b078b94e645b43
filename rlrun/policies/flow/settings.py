"""The keys that every flow policy has, in its own section."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.bounds import COUNT, POSITIVE, bounded
from rlrun.config.sealing import Section


@dataclass
class FlowSettings(Section):
    """Settings of sampling and of what trains."""

    num_flow_steps: int = bounded(4, COUNT)  # K, Euler steps from noise to actions, in rollout and update alike
    noise_level: float = bounded(0.5, POSITIVE)  # of Flow-SDE: the deviation of the random step is proportional to it
    # Reinforcement learning trains the action expert and the critic only; the VLM stays as imitation left it.
    train_expert_only: bool = True
    tokenizer_path: str | None = None  # tokenizer.json of the VLM, for a folder without one, as LeRobot writes them
