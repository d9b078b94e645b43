"""Packing is exact and lazy; received buckets are checked before use."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rlrun.edges.buckets import ALIGNMENT_BYTES, WeightStage, bucket_num_bytes, checksum, lay_out, pack, unpack
from rlrun.edges.incoming_weights import ArrivedWeights
from rlrun.edges.weights import WeightBucket
from rlrun.system.errors import RunError


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"embed.weight": (17, 5), "norm.scale": (3,), "head.weight": (40, 9), "head.bias": ()}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def packed(tensors: dict[str, torch.Tensor], bucket_bytes: int, **options: object) -> list[WeightBucket]:
    dtype = options.pop("dtype", None)
    return list(pack(tensors.items(), lay_out(tensors.items(), bucket_bytes, dtype), 7, **options))


@pytest.mark.parametrize("bucket_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_round_trip_is_exact(bucket_bytes: int, dtype: torch.dtype | None) -> None:
    tensors = weights()
    buckets = packed(tensors, bucket_bytes, dtype=dtype)
    received = dict(pair for bucket in buckets for pair in unpack(bucket))
    assert list(received) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(received[name], tensor.to(dtype or tensor.dtype))
    assert [bucket.index for bucket in buckets] == list(range(buckets[0].num_buckets))
    for bucket in buckets:
        assert len(bucket.slices) == 1 or bucket.payload.nbytes <= bucket_bytes
        assert all(where.offset % ALIGNMENT_BYTES == 0 for where in bucket.slices)


def test_unpack_shares_the_payload() -> None:
    (bucket,) = packed(weights(), 1 << 20, dtype=torch.bfloat16)
    base = bucket.payload.__array_interface__["data"][0]
    for where, (_, tensor) in zip(bucket.slices, unpack(bucket), strict=True):
        assert tensor.data_ptr() == base + where.offset


def test_integers_keep_their_type() -> None:
    tensors = {"steps": torch.arange(5)}
    (bucket,) = packed(tensors, 1 << 20, dtype=torch.bfloat16)
    assert torch.equal(dict(unpack(bucket))["steps"], torch.arange(5))


def test_pack_holds_one_bucket_at_a_time() -> None:
    tensors, drawn = weights(), []

    def source() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors.items():
            drawn.append(name)
            yield name, tensor

    buckets = pack(source(), lay_out(tensors.items(), 400), 0)
    next(buckets)
    assert drawn == ["embed.weight", "norm.scale"][: len(drawn)] and len(drawn) < len(tensors)


def test_changed_model_is_refused() -> None:
    tensors = weights()
    layout = lay_out(tensors.items(), 1 << 20)
    renamed = [(name.replace("norm", "rms"), tensor) for name, tensor in tensors.items()]
    with pytest.raises(ValueError, match=r"layout has 'norm.scale'.*gave 'rms.scale'"):
        list(pack(renamed, layout, 0))
    with pytest.raises(ValueError, match="surplus"):
        list(pack([*tensors.items(), ("surplus", torch.zeros(1))], layout, 0))
    with pytest.raises(ValueError, match="gave nothing"):
        list(pack(list(tensors.items())[:2], layout, 0))
    with pytest.raises(ValueError, match=r"'norm.scale' is sent twice"):
        lay_out([*tensors.items(), ("norm.scale", torch.zeros(3))], 1 << 20)


def test_stage_completes_in_any_order() -> None:
    tensors = weights()
    stage = WeightStage(shapes(tensors))
    buckets = packed(tensors, 400)
    assert [stage.add(bucket) for bucket in reversed(buckets)] == [False] * (len(buckets) - 1) + [True]
    assert stage.policy_version == 7
    assert [name for bucket in stage.buckets() for name, _ in unpack(bucket)] == list(tensors)
    stage.clear()
    assert stage.policy_version is None and not stage.is_complete


def test_stage_names_every_wrong_tensor() -> None:
    tensors = weights()
    expected = shapes(tensors) | {"head.bias": (2,), "value.weight": (1,)}
    del expected["norm.scale"]
    stage = WeightStage(expected)
    (bucket,) = packed(tensors, 1 << 20)
    with pytest.raises(ValueError) as refused:
        stage.add(bucket)
    text = str(refused.value)
    assert "unknown tensor 'norm.scale'" in text and "missing tensor 'value.weight'" in text
    assert "'head.bias' has shape (), the policy holds (2,)" in text and "version 7" in text
    assert stage.policy_version is None


def test_stage_refuses_mixed_versions_and_repeats() -> None:
    tensors = weights()
    first, second, *_ = packed(tensors, 400)
    stage = WeightStage(shapes(tensors))
    stage.add(first)
    with pytest.raises(ValueError, match="version 8 refused.*version 7 was incomplete"):
        stage.add(dataclasses.replace(second, policy_version=8))
    stage.add(first)
    with pytest.raises(ValueError, match="bucket 0 of .* arrived twice"):
        stage.add(first)
    with pytest.raises(RuntimeError, match="not complete"):
        list(stage.buckets())


def test_checksum_finds_a_changed_byte() -> None:
    tensors = weights()
    (bucket,) = packed(tensors, 1 << 20, is_checksummed=True)
    assert checksum(bucket.payload) == checksum(torch.from_numpy(bucket.payload)) == bucket.checksum
    for at in (0, 5, 7, len(bucket.payload) - 1):
        for bit in (1, 128):  # the last one is the sign of a number
            damaged = bucket.payload.copy()
            damaged[at] ^= np.uint8(bit)
            assert checksum(damaged) != bucket.checksum
            with pytest.raises(RunError, match="bucket 0 of the weights of version 7 arrived with other") as caught:
                ArrivedWeights("rollout/0").add(dataclasses.replace(bucket, payload=damaged))
            assert caught.value.worker == "actor/0"


def test_a_checksum_of_any_length() -> None:
    numbers = np.arange(1, 30, dtype=np.uint8)
    assert len({checksum(numbers[:length]) for length in range(30)}) == 30
    assert all(-(2**63) <= checksum(numbers[:length] | 0xF0) < 2**63 for length in range(30))


@pytest.mark.parametrize(
    ("words", "expected"), [([1, 2, 3], 6), ([-5], -5), ([2**63 - 1, 1], -(2**63)), ([-(2**63), -1], 2**63 - 1)]
)
def test_a_checksum_is_the_sum_of_its_words(words: list[int], expected: int) -> None:
    assert checksum(np.array(words, np.int64).view(np.uint8)) == expected


def test_a_payload_may_be_a_tensor_of_an_accelerator() -> None:
    """Packed, checked and unpacked where it is."""
    tensors = weights()
    layout = lay_out(tensors.items(), 400)
    memory = [torch.empty(bucket_num_bytes(slices), dtype=torch.uint8) for slices in layout.buckets]
    stage = WeightStage(shapes(tensors))
    for bucket in pack(tensors.items(), layout, 3, True, lambda index: memory[index]):
        assert bucket.payload is memory[bucket.index]
        stage.add(bucket)
        for name, tensor in unpack(bucket):
            assert torch.equal(tensor, tensors[name])
            assert tensor.untyped_storage().data_ptr() == memory[bucket.index].data_ptr()
    assert stage.is_complete
    memory[bucket.index][0] += 1
    with pytest.raises(RunError, match="arrived with other bytes"):
        ArrivedWeights("rollout/0").add(bucket)
