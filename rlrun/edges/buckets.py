"""Weight buckets: packing tensors into buffers of bounded size, the sender's interface, and checks at the receiver.

Sending needs memory for one bucket and the one tensor that is copied into it. Names, shapes and types are known
before values are gathered, and therefore `num_buckets` is known too.

A transport is a `WeightSender` at the actor, and at the rollout worker a receiver that opens what the sender made of a
bucket. A worker therefore depends neither on Ray nor on the number of its peers::

    packed = pack(tensors, layout, policy_version, buffer=sender.buffer)       # actor; iterate to the end
    for header in sender.send(packed):                                         # every rollout worker
        backend.apply(receiver.open(header))

A bucket with a wrong checksum is a fault of its sender. A policy whose weights differ from the received samples, or a
version that never arrived, is a fault of the rollout worker.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rlrun.edges.weights import SentBucket, TensorSlice, WeightBucket

Memory = np.ndarray | torch.Tensor
ALIGNMENT_BYTES = 64  # a view needs a multiple of its item size; a cache line makes copies fast
EMPTY_PAYLOAD = np.zeros(0, np.uint8)
_NUM_SAMPLED = 16  # fewest sampled elements of a tensor; the most are one less than twice as many


@dataclass(frozen=True)
class BucketLayout:
    """Bucket and offset of every tensor, the same for all policy versions.

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
    buffer: Callable[[int], Memory | None] | None = None,
) -> Iterator[WeightBucket]:
    """Copy tensors (in the order of `layout`) into buckets, lazily.

    buffer: returns the memory (uint8, on the host or an accelerator) for the payload of bucket i, which is overwritten;
    None: new memory for each bucket, which takes three times as long as the copy itself. A bucket with a
    checksum is packed on the accelerator of its tensors first, where summing takes a hundredth of the CPU's time.

    Example::

        layout = lay_out(learner.weight_layout(), bucket_bytes, torch.bfloat16)   # once
        for bucket in pack(learner.named_weights(), layout, policy_version=7): ...

    Raises ValueError if a tensor is not the next one of the layout.
    """
    source = iter(named_tensors)
    for index, slices in enumerate(layout.buckets):
        given = None if buffer is None else buffer(index)
        payload = np.empty(bucket_num_bytes(slices), np.uint8) if given is None else given
        sum_of_words = _fill(payload, slices, source, is_checksummed)
        yield WeightBucket(policy_version, index, len(layout.buckets), slices, payload, sum_of_words)
    surplus = next(source, None)
    if surplus is not None:
        raise ValueError(f"the model gave {surplus[0]!r}, which the layout lacks; lay out again")


def _fill(
    payload: Memory, slices: Sequence[TensorSlice], source: Iterator[tuple[str, Tensor]], is_checksummed: bool
) -> int | None:
    """Copy the next tensors into a payload. Returns its checksum; None if none was asked for."""
    packed = payload
    sources = set[torch.device]()
    for wanted in slices:
        tensor = _next_tensor(source, wanted)
        is_summed_there = is_checksummed and isinstance(payload, np.ndarray) and tensor.device.type == "cuda"
        if is_summed_there and not sources:
            packed = torch.empty(len(payload), dtype=torch.uint8, device=tensor.device)
        _view(packed, wanted).copy_(tensor, non_blocking=True)  # casts
        sources.add(tensor.device)
    if isinstance(packed, np.ndarray):  # else work on the device comes after these copies
        _wait_for_copies(sources)
    sum_of_words = checksum(packed) if is_checksummed else None
    if packed is not payload:
        torch.as_tensor(payload).copy_(torch.as_tensor(packed))
    return sum_of_words


def _next_tensor(source: Iterator[tuple[str, Tensor]], wanted: TensorSlice) -> Tensor:
    """Return the next tensor. Raises ValueError if it is not the wanted one."""
    name, tensor = next(source, ("nothing", None))
    if tensor is None or name != wanted.name or tuple(tensor.shape) != wanted.shape:
        given = name if tensor is None else f"{name!r} {tuple(tensor.shape)}"
        raise ValueError(
            f"the layout has {wanted.name!r} {wanted.shape} next, the model gave {given}; "
            "lay out again after changing the model"
        )
    return tensor


def unpack(bucket: WeightBucket) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a bucket as views of its payload, without a copy; read-only if the payload is."""
    for where in bucket.slices:
        yield where.name, _view(bucket.payload, where)


def on_device(bucket: WeightBucket, device: torch.device) -> WeightBucket:
    """Return a bucket with its payload on the device, copied there at once, where checking and unpacking are fast."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # the array is only read
        return replace(bucket, payload=torch.as_tensor(bucket.payload).to(device, non_blocking=True))


def checksum(payload: np.ndarray | torch.Tensor) -> int:
    """Return the sum of a payload's 64-bit words modulo 2**64, as a signed number.

    It takes as long as reading the payload. Any single changed bit or word changes it. A CRC would also detect swapped
    words, and takes six times as long.
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


class WeightSender(ABC):
    """The sender's half of a transport."""

    def buffer(self, index: int) -> Memory | None:
        """Return the memory into which bucket `index` is packed, uint8 [its size]; None: new memory."""
        return None

    @abstractmethod
    def header(self, bucket: WeightBucket) -> SentBucket | None:
        """Send a packed bucket. Returns what the caller carries to every receiver; None: receivers have it already."""

    def finish(self) -> None:  # noqa: B027  (most senders have nothing to wait for)
        """Wait until everything that `header` began to send has been sent. Raises TimeoutError naming the wait."""

    def send(self, buckets: Iterable[WeightBucket]) -> Iterator[SentBucket]:
        """Send one policy version. Yields what the caller carries."""
        for bucket in buckets:
            header = self.header(bucket)
            if header is not None:
                yield header
        self.finish()


class ObjectStoreSender(WeightSender):
    """Sender for the object store: buckets are return values, of which Ray keeps one copy per node."""

    def header(self, bucket: WeightBucket) -> WeightBucket:
        return bucket


class WeightStage:
    """Buckets of one policy version, collected and checked before they are applied.

    Example::

        stage = WeightStage({name: tuple(p.shape) for name, p in model.named_parameters()})
        if stage.add(bucket):                     # True with the last bucket of a version
            for bucket in stage.buckets(): ...
            stage.clear()

    optional: names of `expected` that a version may omit (unused weights).
    After a ValueError the stage is empty: the version in use remains, and the next one can be staged.
    """

    def __init__(self, expected: Mapping[str, tuple[int, ...]], optional: Set[str] = frozenset()):
        self._expected = dict(expected)
        self._optional = optional
        self._buckets: dict[int, WeightBucket] = {}

    @property
    def policy_version(self) -> int | None:
        """Version of the staged buckets; None if there are none."""
        return next(iter(self._buckets.values())).policy_version if self._buckets else None

    @property
    def is_complete(self) -> bool:
        return bool(self._buckets) and len(self._buckets) == next(iter(self._buckets.values())).num_buckets

    def add(self, bucket: WeightBucket, is_kept: bool = True) -> bool:
        """Stage a bucket. Returns True if it completes its version.

        is_kept: keep its payload; False: keep its header only, for a caller that applies each bucket immediately.
        Raises ValueError for a bucket of another version, a repeated bucket, and (with the last bucket) every unknown,
        missing, repeated or mis-shaped tensor.
        """
        faults = self._bucket_faults(bucket)
        if not faults:
            self._buckets[bucket.index] = bucket if is_kept else dataclasses.replace(bucket, payload=EMPTY_PAYLOAD)
            faults = self._tensor_faults() if self.is_complete else []
        if faults:
            self.clear()
            raise ValueError(f"weights of policy version {bucket.policy_version} refused: " + "; ".join(faults))
        return self.is_complete

    def buckets(self) -> Iterator[WeightBucket]:
        """Yield the buckets of the complete version, in order."""
        if not self.is_complete:
            raise RuntimeError("the staged policy version is not complete; add its remaining buckets first")
        for index in sorted(self._buckets):
            yield self._buckets[index]

    def clear(self) -> None:
        """Drop the staged buckets and their memory."""
        self._buckets = {}

    def _bucket_faults(self, bucket: WeightBucket) -> list[str]:
        faults = []
        if self._buckets and bucket.policy_version != self.policy_version:
            have = len(self._buckets)
            faults.append(f"it arrived while version {self.policy_version} was incomplete ({have} buckets staged)")
        elif bucket.index in self._buckets:
            faults.append(f"bucket {bucket.index} of {bucket.num_buckets} arrived twice")
        elif self._buckets and bucket.num_buckets != next(iter(self._buckets.values())).num_buckets:
            faults.append(f"bucket {bucket.index} counts {bucket.num_buckets} buckets, earlier ones another number")
        if not 0 <= bucket.index < bucket.num_buckets:
            faults.append(f"bucket index {bucket.index} is outside 0..{bucket.num_buckets - 1}")
        return faults

    def _tensor_faults(self) -> list[str]:
        sent = [where for bucket in self._buckets.values() for where in bucket.slices]
        times = Counter(where.name for where in sent)
        faults = [f"unknown tensor {name!r}" for name in times if name not in self._expected]
        required = [name for name in self._expected if name not in self._optional]
        faults += [f"missing tensor {name!r}" for name in required if name not in times]
        faults += [f"repeated tensor {name!r}" for name, count in times.items() if count > 1]
        for where in sent:
            shape = self._expected.get(where.name, where.shape)
            if tuple(shape) != where.shape:
                faults.append(f"tensor {where.name!r} has shape {where.shape}, the policy holds {tuple(shape)}")
        return faults


def sample_values(tensor: Tensor) -> Tensor:
    """Return evenly spaced elements of a tensor, copied on its device."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _NUM_SAMPLED)].clone()
