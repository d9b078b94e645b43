"""A backend on the CPU computes with the memory that a policy version came in, where it was given it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from rlrun.config.loader import load
from rlrun.data.messages import Frames, Observation, Spaces, WeightBucket
from rlrun.policies.actor_critic.policy import ActorCriticPolicy, new_actor_critic
from rlrun.rollout.hf import HFBackend
from rlrun.weight_sync.buckets import lay_out, pack, unpack
from tests.numerics import assert_norm_close, rounding

SPACES = Spaces(2, None, (-1.0, -1.0), (1.0, 1.0), 5, 0)
OBSERVED = Frames(np.zeros((3, 0, 8, 8, 3), np.uint8), np.arange(15, dtype=np.float32).reshape(3, 5), ("",) * 3)


def policy(seed: int) -> ActorCriticPolicy:
    return new_actor_critic(load(["run=halfcheetah"]).policy, 8, SPACES, seed)


def version(number: int, is_given: bool) -> Iterator[WeightBucket]:
    tensors = policy(number).module.state_dict()
    for bucket in pack(tensors.items(), lay_out(tensors.items(), 4096), number):
        yield dataclasses.replace(bucket, is_given=is_given)


def acted(backend: HFBackend) -> tuple[np.ndarray, np.ndarray]:
    keys = np.arange(3, dtype=np.uint64)
    (chunk,) = backend.act([Observation(0, OBSERVED, keys, 1.0, OBSERVED)])
    return chunk.actions, chunk.final_values


def test_given_payloads_are_the_weights() -> None:
    adopting, copying = HFBackend(policy(0), adopts_payloads=True), HFBackend(policy(0))
    for number in (1, 2):
        buckets = list(version(number, is_given=True))
        for bucket in buckets:
            adopting.apply(bucket)
            copying.apply(bucket)
        held = dict(adopting._policy.module.state_dict())
        copied = dict(copying._policy.module.state_dict())
        for name, tensor in (pair for bucket in buckets for pair in unpack(bucket)):
            assert held[name].data_ptr() == tensor.data_ptr() != copied[name].data_ptr()
        assert adopting.policy_version == number
        for ours, theirs in zip(acted(adopting), acted(copying), strict=True):
            assert_norm_close(ours, theirs, rounding(256))  # adopted tensors lie at any address


def test_other_payloads_are_copied() -> None:
    adopting = HFBackend(policy(0), adopts_payloads=True)
    buckets = list(version(1, is_given=False))
    for bucket in buckets:
        adopting.apply(bucket)
    before = acted(adopting)
    for bucket in buckets:
        bucket.payload[:] = 0
    assert all(np.array_equal(*pair) for pair in zip(before, acted(adopting), strict=True))
