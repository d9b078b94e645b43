"""A critic that is a network of its own is left out of what acts, and asked for the rows that only need a value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.config.schema import PolicyConfig, PolicyKind
from rlrun.data.messages import Frames, Observation, Spaces
from rlrun.policies.actor_critic.policy import ActorCriticPolicy, new_actor_critic
from rlrun.rollout.hf import HFBackend
from tests.numerics import assert_norm_close, rounding

SPACES = Spaces(2, None, (-1.0,) * 2, (1.0,) * 2, num_proprio=3, num_images=1)
SIDE = 8
ROUNDING = rounding(SIDE * SIDE * 3)


def policy(kind: PolicyKind) -> ActorCriticPolicy:
    sizes = {"hidden_sizes": [8], "value_hidden_sizes": [8], "conv_channels": [4]}
    return new_actor_critic(PolicyConfig(kind=kind, **sizes), SIDE, SPACES, seed=0)


def frames(num_rows: int, seed: int) -> Frames:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (num_rows, 1, SIDE, SIDE, 3), dtype=np.uint8)
    return Frames(images, draw.standard_normal((num_rows, 3)).astype(np.float32), ("",) * num_rows)


@pytest.mark.parametrize("kind", [PolicyKind.mlp, PolicyKind.cnn])
def test_what_is_answered_is_what_the_whole_policy_computes(kind: PolicyKind) -> None:
    own_critic = kind is PolicyKind.mlp  # a cnn's shares the convolutions
    backend, whole = HFBackend(policy(kind)), policy(kind)
    backend.policy_version = 0
    others = [frames(5, 3), None]
    if own_critic:
        others[0] = Frames(others[0].images[:, :0], others[0].proprio, others[0].instructions)
    asked = [
        Observation(env, frames(2 + env, env), np.arange(2 + env, dtype=np.uint64), 1.0, others[env]) for env in (0, 1)
    ]
    for question, chunk in zip(asked, backend.act(asked), strict=True):
        seen = question.frames
        with torch.no_grad():
            distribution, values = whole(seen.images, seen.instructions, seen.proprio, 1.0)
            assert np.array_equal(chunk.tokens, distribution.sample(question.sampling_keys).numpy())
            if own_critic:
                assert chunk.values is None
            else:
                assert_norm_close(chunk.values, values, ROUNDING)
            if question.final_frames is None:
                assert chunk.final_values is None
                continue
            finals = frames(5, 3)
            values = whole(finals.images, finals.instructions, finals.proprio, 1.0)[1]
            assert_norm_close(chunk.final_values, values, ROUNDING)
