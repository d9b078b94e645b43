"""The contract of every rollout backend: batched action, correct log-probabilities, atomic weight updates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.config.schema import (
    EnvConfig,
    Precision,
    RolloutBackendKind,
    RolloutConfig,
    RunConfig,
    SglangConfig,
)
from rlrun.edges.actions import ActionChunk
from rlrun.edges.buckets import lay_out, pack
from rlrun.edges.frames import Frames
from rlrun.edges.incoming_weights import ArrivedWeights
from rlrun.edges.observations import Observation
from rlrun.edges.weights import WeightBucket
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.policies.distributions import token_logprobs
from rlrun.policies.opening import open_unfilled
from rlrun.policies.openvla_oft.policy import VlaPolicy, save_policy
from rlrun.rollout.backend import RolloutBackend, unsent_names
from rlrun.rollout.hf import HFBackend
from rlrun.rollout.make import make_backend
from rlrun.rollout.sglang.backend import SglangBackend, make_engine
from rlrun.rollout.sglang.engine import Engine, Rows, TensorBlock
from rlrun.system.errors import RunError
from tests.integration.sglang import sglang_python
from tests.numerics import assert_norm_close, norm_error
from tests.unit.policies.small import INSTRUCTIONS, SIZE, A, opened_vla, small_config, small_policy, some_frames

C = 2
K = C * A
TEMPERATURE = 1.3


@dataclass(frozen=True)
class Implementation:
    """How to make one backend.

    tolerance, value_tolerance: how far its log-probabilities and values may lie from float32 ones, relative to their
    norm. A value is one sum, which cancels.
    swaps: the share of tokens that rounding may push over the edge of their bin, into the next one.
    """

    rollout: RolloutConfig
    tolerance: float = 1e-5
    value_tolerance: float = 3e-5
    swaps: float = 0.0


SGLANG = RolloutBackendKind.sglang
IMPLEMENTATIONS = {
    "hf_fp32": Implementation(RolloutConfig()),
    "hf_bf16": Implementation(RolloutConfig(precision=Precision.bf16), 3e-2, 0.2, 0.1),
    "sglang_fp32_two_ranks": Implementation(  # a tensor-parallel group
        RolloutConfig(backend=SGLANG, sglang=SglangConfig(server_args={"tp_size": 2}))
    ),
    "sglang_bf16": Implementation(RolloutConfig(backend=SGLANG, precision=Precision.bf16), 3e-2, 0.2, 0.1),
}
ENGINE = pytest.mark.timeout(900)  # it starts once, in half a minute
MARKS = {"sglang_bf16": [pytest.mark.integration, ENGINE], "sglang_fp32_two_ranks": [pytest.mark.long, ENGINE]}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=MARKS.get(name, [])) for name in IMPLEMENTATIONS],
)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return IMPLEMENTATIONS[request.param]


class Lent(Engine):
    """One engine for all backends of this file; closing a backend does not end it."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def act(self, rows: Rows) -> np.ndarray:
        return self._engine.act(rows)

    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        self._engine.update(blocks, policy_version)

    def probe(self) -> None:
        self._engine.probe()

    def release(self) -> None:
        self._engine.release()

    def resume(self) -> None:
        self._engine.resume()

    def close(self) -> None:
        pass


def vla(folder: Path, config: RunConfig) -> VlaPolicy:
    """The policy of a folder without its weights."""
    policy, _ = open_unfilled(folder, config)
    assert isinstance(policy, VlaPolicy)
    return policy


@pytest.fixture(scope="module")
def engine(implementation: Implementation, folder: Path) -> Iterator[Engine | None]:
    """The engine, or None for backends without one."""
    if implementation.rollout.backend is not SGLANG:
        yield None
        return
    rollout = replace(implementation.rollout, sglang=replace(implementation.rollout.sglang, python=sglang_python()))
    config = run_config(rollout)
    cores = sorted(os.sched_getaffinity(0))
    with pytest.MonkeyPatch.context() as environment:  # SGLang's CPU ranks would bind to separate cores
        if implementation.rollout.sglang.server_args:
            environment.setenv("SGLANG_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
        engine = make_engine(config, folder, vla(folder, config).module.config)
    yield engine
    engine.close()


def run_config(rollout: RolloutConfig) -> RunConfig:
    env = EnvConfig(image_size=SIZE, sections={"embedded": EmbeddedConfig(cameras=["camera_0"])})
    return RunConfig(env=env, policy=small_config(), rollout=rollout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    save_policy(path, *small_policy(seed=99))
    return path


@pytest.fixture
def backend(implementation: Implementation, folder: Path, engine: Engine | None) -> RolloutBackend:
    config = run_config(implementation.rollout)
    if engine is None:
        return make_backend(config, folder)
    policy = vla(folder, config)
    return SglangBackend(Lent(engine), policy, unsent_names(policy, config))


def weights(seed: int) -> dict[str, Tensor]:
    """The weights that an actor publishes."""
    return dict(small_policy(seed=seed)[0].state_dict())


def buckets(tensors: dict[str, Tensor], version: int, num_bytes: int = 1 << 14) -> list[WeightBucket]:
    return list(pack(tensors.items(), lay_out(tensors.items(), num_bytes), version))


def publish(backend: RolloutBackend, tensors: dict[str, Tensor], version: int) -> None:
    for bucket in buckets(tensors, version):
        backend.apply(bucket)


def observation(
    frames: Frames, first_key: int = 0, temperature: float = TEMPERATURE, final: Frames | None = None
) -> Observation:
    keys = np.arange(first_key, first_key + len(frames), dtype=np.uint64)
    return Observation(0, frames, keys, temperature, final)


def recomputed(tensors: dict[str, Tensor], frames: Frames) -> tuple[Tensor, Tensor]:
    """Return (logits, values) of the actor's forward pass with the published weights, in float32."""
    model, processor = small_policy()
    model.load_state_dict(tensors)
    inputs = processor(frames.images, frames.instructions, frames.proprio)
    with torch.no_grad():
        output = model(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
    return output.action_logits, output.value


def same(a: ActionChunk, b: ActionChunk, within: Implementation) -> None:
    """Tolerance: how far results of one observation may depend on the other rows of the batch."""
    swapped = a.tokens != b.tokens
    assert swapped.mean() <= within.swaps and np.abs(a.tokens.astype(int) - b.tokens).max() <= 1
    assert_norm_close(a.logprobs[~swapped], b.logprobs[~swapped], within.tolerance)
    assert_norm_close(a.values, b.values, within.value_tolerance)


# --- acting -------------------------------------------------------------------------------


def test_act_fails_before_the_first_weights(backend: RolloutBackend) -> None:
    assert backend.policy_version == -1
    with pytest.raises(RuntimeError, match="before the first weights"):
        backend.act([observation(some_frames(1))])


def test_types_and_shapes(backend: RolloutBackend) -> None:
    publish(backend, weights(1), 7)
    first, second = backend.act([observation(some_frames(3), final=some_frames(2)), observation(some_frames(1))])
    for chunk, num_rows in ((first, 3), (second, 1)):
        assert chunk.actions.shape == (num_rows, C, A)
        assert chunk.tokens.shape == chunk.logprobs.shape == (num_rows, K)
        assert chunk.values.shape == (num_rows,)
        assert (chunk.actions.dtype, chunk.tokens.dtype) == (np.float32, np.uint8)
        assert chunk.logprobs.dtype == chunk.values.dtype == np.float32
        assert chunk.policy_version == 7
    assert first.final_values.shape == (2,)
    assert first.final_values.dtype == np.float32
    assert second.final_values is None


def test_logprobs_and_values_are_those_of_the_actor(backend: RolloutBackend, implementation: Implementation) -> None:
    """Needed for a probability ratio of 1 at step 0."""
    tensors, frames, final = weights(1), some_frames(6), some_frames(2, seed=9)
    publish(backend, tensors, 0)
    chunk = backend.act([observation(frames, final=final)])[0]
    logits, values = recomputed(tensors, frames)
    expected = token_logprobs(logits, torch.from_numpy(chunk.tokens), TEMPERATURE)
    far, off = norm_error(chunk.logprobs, expected), norm_error(chunk.values, values)
    rollout = f"{implementation.rollout.backend.value} {implementation.rollout.precision.value}"
    print(f"{rollout}: relative errors: log-probabilities {far:.1e}, values {off:.1e}")
    assert far < implementation.tolerance and off < implementation.value_tolerance
    assert_norm_close(chunk.final_values, recomputed(tensors, final)[1], implementation.value_tolerance)


def test_actions_are_the_decoded_tokens(backend: RolloutBackend) -> None:
    publish(backend, weights(1), 0)
    chunk = backend.act([observation(some_frames(4))])[0]
    np.testing.assert_array_equal(chunk.actions, small_policy()[1].decode_actions(chunk.tokens))


def test_batching_changes_nothing(backend: RolloutBackend, implementation: Implementation) -> None:
    """Observations of several env workers give the same results in one call as in separate calls."""
    publish(backend, weights(1), 0)
    asked = [observation(some_frames(3, seed=i), first_key=100 * i) for i in range(3)]
    asked[1] = replace(asked[1], final_frames=some_frames(2, seed=8))
    together = backend.act(asked)
    for one, expected in zip(asked, together, strict=True):
        same(backend.act([one])[0], expected, implementation)


def test_keys_decide_the_samples(backend: RolloutBackend, implementation: Implementation) -> None:
    publish(backend, weights(1), 0)
    frames = some_frames(4)
    chunk = backend.act([observation(frames)])[0]
    same(backend.act([observation(frames)])[0], chunk, implementation)
    assert (backend.act([observation(frames, first_key=50)])[0].tokens != chunk.tokens).any()


def test_temperature_zero_takes_the_most_likely_bins(backend: RolloutBackend) -> None:
    publish(backend, weights(1), 0)
    frames = some_frames(4)
    chunk = backend.act([observation(frames, temperature=0.0)])[0]
    again = backend.act([observation(frames, first_key=7, temperature=0.0)])[0]
    np.testing.assert_array_equal(chunk.tokens, again.tokens)
    logits, _ = recomputed(weights(1), frames)
    taken = logits.gather(-1, torch.from_numpy(chunk.tokens).long()[..., None]).squeeze(-1)
    assert (taken > logits.max(-1).values - 0.1).all()  # rounding may swap near ties
    with pytest.raises(ValueError, match="temperatures"):
        backend.act([observation(frames, temperature=0.0), observation(frames)])


# --- weights ------------------------------------------------------------------------------


def test_a_version_is_current_after_its_last_bucket(backend: RolloutBackend, implementation: Implementation) -> None:
    publish(backend, weights(1), 0)
    frames = some_frames(2)
    old = backend.act([observation(frames)])[0]
    arriving = buckets(weights(2), 1)
    assert len(arriving) > 2
    for bucket in arriving[:-1]:
        backend.apply(bucket)
    is_old_or_none(backend, 0, frames, old, implementation)
    backend.apply(arriving[-1])
    assert backend.policy_version == 1
    new = backend.act([observation(frames)])[0]
    assert new.policy_version == 1
    _, values = recomputed(weights(2), frames)
    assert_norm_close(new.values, values, implementation.value_tolerance)


def test_an_offloaded_backend_accepts_weights_for_later(
    backend: RolloutBackend, implementation: Implementation
) -> None:
    publish(backend, weights(1), 0)
    frames = some_frames(2)
    old = backend.act([observation(frames)])[0]
    backend.offload()
    backend.offload()  # calling twice is allowed
    with pytest.raises(RuntimeError, match=r"call onload\(\) first"):
        backend.act([observation(frames)])
    backend.onload()
    backend.onload()
    same(backend.act([observation(frames)])[0], old, implementation)
    expected = {seed: recomputed(weights(seed), frames)[1] for seed in (2, 3)}
    for version, seed in ((1, 2), (2, 3)):
        backend.offload()
        for bucket in buckets(weights(seed), version):  # the sender keeps them until the next version
            backend.apply(bucket)
        assert backend.policy_version == version
        for _ in range(2):  # the second time without new weights, as for an evaluation after a checkpoint
            backend.onload()
            chunk = backend.act([observation(frames)])[0]
            assert chunk.policy_version == version
            assert_norm_close(chunk.values, expected[seed], implementation.value_tolerance)
            backend.offload()
    for bucket in buckets(weights(1), 3)[:-1]:  # half a version: the sender has begun to write over the last one
        backend.apply(bucket)
    backend.discard_staged()
    if isinstance(backend, HFBackend):  # its last version was in that memory; an engine has a copy of its own
        assert backend.policy_version == -1
        backend.onload()
        with pytest.raises(RuntimeError, match="every bucket of a policy version"):
            backend.act([observation(frames)])
    else:
        backend.onload()
        assert backend.act([observation(frames)])[0].policy_version == 2
    publish(backend, weights(2), 4)
    assert_norm_close(backend.act([observation(frames)])[0].values, expected[2], implementation.value_tolerance)


def test_damage_on_the_host_is_found_when_weights_come_to_the_accelerator(
    backend: RolloutBackend, implementation: Implementation
) -> None:
    """An engine of SGLang takes weights in another process, so they are verified as they arrive."""
    if implementation.rollout.backend is SGLANG:
        pytest.skip("verified as they arrive")
    publish(backend, weights(1), 0)
    backend.offload()
    tensors = weights(2)
    arriving = list(pack(tensors.items(), lay_out(tensors.items(), 1 << 14), 1, is_checksummed=True))
    for bucket in arriving:
        backend.apply(bucket)
    arriving[1].payload[5] ^= 1
    with pytest.raises(RunError, match="bucket 1 of the weights of version 1 arrived with other bytes"):
        backend.onload(ArrivedWeights("rollout/0").verify)
    assert backend.policy_version == -1  # a part of it may have been taken
    backend.offload()
    publish(backend, tensors, 1)
    backend.onload(ArrivedWeights("rollout/0").verify)
    assert backend.policy_version == 1


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {("stray" if name == "projector.fc1.bias" else name): tensor for name, tensor in tensors.items()}


def reshaped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"projector.fc2.bias": torch.zeros(3), "projector.fc1.bias": torch.zeros(2, 2)}


FAULTS: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], tuple[str, ...]]] = {
    "unknown and missing": (renamed, ("unknown tensor 'stray'", "missing tensor 'projector.fc1.bias'")),
    "of other shapes": (reshaped, ("'projector.fc2.bias' has shape (3,)", "'projector.fc1.bias' has shape (2, 2)")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_weights_are_named_and_never_used(
    backend: RolloutBackend, implementation: Implementation, fault: str
) -> None:
    change, complaints = FAULTS[fault]
    publish(backend, weights(1), 4)
    frames = some_frames(2)
    old = backend.act([observation(frames)])[0]
    with pytest.raises(ValueError) as caught:
        publish(backend, change(weights(2)), 5)
    assert all(complaint in str(caught.value) for complaint in complaints)
    is_old_or_none(backend, 4, frames, old, implementation)
    publish(backend, weights(2), 6)  # the next version is accepted
    assert backend.policy_version == 6
    assert_norm_close(
        backend.act([observation(frames)])[0].values, recomputed(weights(2), frames)[1], implementation.value_tolerance
    )


def test_half_a_version_is_forgotten_and_a_whole_one_accepted(
    backend: RolloutBackend, implementation: Implementation
) -> None:
    publish(backend, weights(1), 4)
    frames = some_frames(2)
    old = backend.act([observation(frames)])[0]
    for bucket in buckets(weights(2), 5)[:-1]:
        backend.apply(bucket)
    backend.discard_staged()
    is_old_or_none(backend, 4, frames, old, implementation)
    publish(backend, weights(1), 4)
    same(backend.act([observation(frames)])[0], old, implementation)


def is_old_or_none(
    backend: RolloutBackend, version: int, frames: Frames, old: ActionChunk, implementation: Implementation
) -> None:
    """After a part of a version: backends that stage use the old one, others none; a mixture is never used."""
    if implementation.rollout.backend is SGLANG:
        assert backend.policy_version == version
        same(backend.act([observation(frames)])[0], old, implementation)
    else:
        assert backend.policy_version == -1
        with pytest.raises(RuntimeError, match="every bucket of a policy version"):
            backend.act([observation(frames)])


def test_dead_weights_need_not_be_sent(backend: RolloutBackend, implementation: Implementation) -> None:
    frozen = small_policy()[0].frozen_names()
    publish(backend, {name: tensor for name, tensor in weights(1).items() if name not in frozen}, 0)
    frames = some_frames(2)
    _, values = recomputed(weights(1), frames)
    assert_norm_close(backend.act([observation(frames)])[0].values, values, implementation.value_tolerance)


def test_weights_may_be_sent_in_bfloat16(backend: RolloutBackend) -> None:
    """As the actor sends them for a bfloat16 rollout: read-only bytes, as from the object store."""
    tensors = {name: tensor.bfloat16() for name, tensor in weights(1).items()}
    for bucket in buckets(tensors, 0):
        bucket.payload.flags.writeable = False
        backend.apply(bucket)
    frames = some_frames(2)
    logits, _ = recomputed({name: tensor.float() for name, tensor in tensors.items()}, frames)
    chunk = backend.act([observation(frames)])[0]
    expected = token_logprobs(logits, torch.from_numpy(chunk.tokens), TEMPERATURE)
    assert_norm_close(chunk.logprobs, expected, 3e-2)


def test_a_closed_backend_refuses(backend: RolloutBackend) -> None:
    publish(backend, weights(1), 0)
    backend.close()
    with pytest.raises(RuntimeError):
        backend.act([observation(some_frames(1))])


def test_published_weights_are_not_those_of_the_folder(backend: RolloutBackend, folder: Path) -> None:
    """Guards the tests above: the published weights differ from those of the folder."""
    in_folder = opened_vla(folder, torch.float32, "cpu")[0].state_dict()
    assert not torch.equal(in_folder["projector.fc1.weight"], weights(1)["projector.fc1.weight"])
    assert INSTRUCTIONS[0] in some_frames(1).instructions


@pytest.mark.skipif(find_spec("sglang") is not None, reason="this interpreter has SGLang")
def test_an_interpreter_without_sglang_is_refused_with_a_remedy(folder: Path) -> None:
    with pytest.raises(RunError, match=r"(?s)SGLang cannot be imported.*rollout\.sglang\.python"):
        make_backend(run_config(RolloutConfig(backend=SGLANG)), folder)
