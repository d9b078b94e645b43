"""A rollout worker uses its own number of threads, even with an actor worker in the same process."""

from __future__ import annotations

import numpy as np
import torch

from rlrun.config.schema import PolicyConfig
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.spaces import Spaces
from rlrun.policies.actor_critic.policy import ActorCriticPolicy
from rlrun.policies.actor_critic.spec import MlpSettings
from rlrun.rollout.hf import HFBackend


def test_each_act_call_sets_the_threads_of_the_rollout() -> None:
    spaces = Spaces(2, None, (-1.0,) * 2, (1.0,) * 2, num_proprio=3, num_images=0)
    policy = ActorCriticPolicy.new(
        PolicyConfig(kind="mlp", sections={"mlp": MlpSettings(hidden_sizes=[4])}), 4, spaces, 0
    )
    backend = HFBackend(policy, num_threads=3)
    backend.policy_version = 0
    frames = Frames(np.zeros((2, 0, 4, 4, 3), np.uint8), np.zeros((2, 3), np.float32), ("", ""))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)  # as an update has done since
        backend.act([Observation(0, frames, np.arange(2, dtype=np.uint64), 1.0, None)])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
