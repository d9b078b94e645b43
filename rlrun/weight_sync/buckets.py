"""Packs tensors into buckets of bounded size: one aligned buffer per bucket, never a whole state dict.

Sending needs memory for one bucket and the one tensor that is copied into it. Names, shapes and types are known
before values are gathered, and therefore `num_buckets` is known too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from rlrun.data.messages import TensorSlice, WeightBucket

ALIGNMENT_BYTES = 64  # a view needs a multiple of its item size; a cache line makes copies fast


@dataclass(frozen=True)
class BucketLayout:
    """The bucket and offset of every tensor; the same for all policy versions.

    Example: two fp32 tensors of 10 and 20 numbers in buckets of 100 bytes: the first is at 0..40 of bucket 0, the
    second (80 bytes, which do not fit behind it) at 0..80 of bucket 1.
    """

    buckets: tuple[tuple[TensorSlice, ...], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all payloads of one policy version."""
        return sum(bucket_num_bytes(slices) for slices in self.buckets)


def bucket_num_bytes(slices: tuple[TensorSlice, ...]) -> int:
    """Return the size of the payload that holds `slices`."""
    return slices[-1].offset + slices[-1].num_bytes if slices else 0


def lay_out(
    named_tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int, dtype: torch.dtype | None = None
) -> BucketLayout:
    """Assign every tensor to a bucket, in order, using only shapes and types (so DTensors and meta tensors work).

    dtype: type in which floating-point tensors are sent; None: unchanged. A tensor larger than `bucket_bytes` gets
    its own bucket. Raises ValueError for a repeated name.
    """
    buckets: list[list[TensorSlice]] = []
    end = 0
    names: set[str] = set()
    for name, tensor in named_tensors:
        if name in names:
            raise ValueError(f"tensor {name!r} is sent twice; remove the duplicate (tied weights are sent once)")
        names.add(name)
        sent_as = dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype
        num_bytes = tensor.numel() * sent_as.itemsize
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if not buckets or offset + num_bytes > bucket_bytes:
            buckets.append([])
            offset = 0
        buckets[-1].append(TensorSlice(name, str(sent_as)[len("torch.") :], tuple(tensor.shape), offset, num_bytes))
        end = offset + num_bytes
    return BucketLayout(tuple(tuple(bucket) for bucket in buckets))


def pack(
    named_tensors: Iterable[tuple[str, torch.Tensor]],
    layout: BucketLayout,
    policy_version: int,
    is_checksummed: bool = False,
    place: Callable[[int], np.ndarray | torch.Tensor] | None = None,
) -> Iterator[WeightBucket]:
    """Copy tensors (in the order of `layout`) into buckets, lazily.

    place: returns the memory (uint8, on the host or an accelerator) for the payload of bucket i, which is overwritten;
    None: new memory for each bucket, whose allocation takes three times as long as the copy itself.

    Example::

        layout = lay_out(learner.weight_layout(), bucket_bytes, torch.bfloat16)   # once
        for bucket in pack(learner.named_weights(), layout, policy_version=7): ...

    Raises ValueError if a tensor is not the next one of the layout.
    """
    source = iter(named_tensors)
    for index, slices in enumerate(layout.buckets):
        payload = np.empty(bucket_num_bytes(slices), np.uint8) if place is None else place(index)
        sources = set()
        for wanted in slices:
            name, tensor = next(source, ("nothing", None))
            if tensor is None or name != wanted.name or tuple(tensor.shape) != wanted.shape:
                found = name if tensor is None else f"{name!r} {tuple(tensor.shape)}"
                raise ValueError(
                    f"the layout has {wanted.name!r} {wanted.shape} next, the model gave {found}; "
                    "lay out again after changing the model"
                )
            _view(payload, wanted).copy_(tensor, non_blocking=True)  # casts
            sources.add(tensor.device)
        if isinstance(payload, np.ndarray):  # else the reader's work on the device comes after these copies
            _wait_for_copies(sources)
        bucket = WeightBucket(policy_version, index, len(layout.buckets), slices, payload)
        yield replace(bucket, checksum=checksum(payload)) if is_checksummed else bucket
    surplus = next(source, None)
    if surplus is not None:
        raise ValueError(f"the model gave {surplus[0]!r}, which the layout lacks; lay out again")


def unpack(bucket: WeightBucket) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a bucket as views of its payload, without a copy; read-only if the payload is."""
    for where in bucket.slices:
        yield where.name, _view(bucket.payload, where)


def checksum(payload: np.ndarray | torch.Tensor) -> int:
    """Return the sum of a payload's 64-bit words modulo 2**64, as a signed number. It takes as long as reading.

    Any single changed bit or word changes it. A CRC would also find exchanged words, and takes six times as long.
    """
    num_whole = len(payload) // 8 * 8
    tail = int.from_bytes(bytes(payload[num_whole:].tolist()), "little")
    if isinstance(payload, np.ndarray):
        total = int(payload[:num_whole].view(np.int64).sum())
    else:
        total = int(payload[:num_whole].view(torch.int64).sum())
    return (total + tail + 2**63) % 2**64 - 2**63


def _wait_for_copies(sources: set[torch.device]) -> None:
    for device in sources:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _view(payload: np.ndarray | torch.Tensor, where: TensorSlice) -> torch.Tensor:
    raw = torch.as_tensor(payload[where.offset : where.offset + where.num_bytes])
    return raw.view(getattr(torch, where.dtype)).view(where.shape)
