"""Weights between two processes on one accelerator: the sender writes into two buffers of the receiver, by CUDA IPC.

The receiver allocates the buffers. Actor workers cannot: their allocator has expandable segments, whose memory other
processes can open on few systems only, and slowly. Rollout workers allocate by plain cudaMalloc, and an actor worker
that opens their memory allocates nothing.

| step | sender | receiver |
|---|---|---|
| 1 | opens the buffers, once | shares their handles |
| 2 | packs bucket i into buffer i modulo 2, waits for its device, says so | |
| 3 | | copies from the buffer, waits for its device, acknowledges |
| 4 | packs bucket i + 2, after the acknowledgement of bucket i | |

A copy that is only enqueued has not happened: a sender that writes before it corrupts the weights. So the receiver
acknowledges after its device has finished, and a checksum (`weight_sync.is_checksum_verified`) finds what does not.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # teaches ForkingPickler to pass on memory in place of its content
from torch import Tensor

from rlrun.edges.buckets import EMPTY_PAYLOAD, BucketLayout, WeightSender, bucket_num_bytes
from rlrun.edges.weights import DeviceBucket, DeviceHandles, SharedBucket, WeightBucket

NUM_BUFFERS = 2  # one is read while the other is written


def share(buffer: Tensor) -> bytes:
    """Return a handle by which another process on the same accelerator can open a buffer that stays allocated.

    One of memory of the CPU can be opened once; one of an accelerator by several processes, one after the other.
    """
    return bytes(ForkingPickler.dumps(buffer))


def open_shared(handle: bytes) -> Tensor:
    """Return the memory of a handle from `share`, which a worker of the same run made."""
    return ForkingPickler.loads(handle)


class DeviceMemory:
    """The two buffers of a receiver.

    Example::

        memory = DeviceMemory(512 * 2**20, torch.device("cuda"))
        sender = DeviceSender([OpenedMemory(memory.shared())], layout)     # in another process
        for found in sender.send(pack(…, buffer=sender.buffer)):
            backend.apply(memory.open(found)); memory.finish()   # then the sender may go on to the next but one
    """

    def __init__(self, bucket_bytes: int, device: torch.device):
        """bucket_bytes: of the largest bucket. Raises RuntimeError if the device lacks the memory."""
        self._device = device
        self.bucket_bytes = bucket_bytes
        self._buffers = [torch.empty(bucket_bytes, dtype=torch.uint8, device=device) for _ in range(NUM_BUFFERS)]
        self._token = secrets.token_hex(8)
        self._handles: DeviceHandles | None = None  # of an accelerator's memory

    def shared(self) -> DeviceHandles:
        """Return handles for a sender. Raises RuntimeError if the system has no CUDA IPC.

        Memory of an accelerator is shared once: torch counts the readers of each sharing, and memory whose reader died
        would never be freed, however many read it after that one.
        """
        if self._handles is not None:
            return self._handles
        made = DeviceHandles(self._token, tuple(map(share, self._buffers)))
        self._handles = made if self._device.type == "cuda" else None
        return made

    def open(self, found: DeviceBucket) -> WeightBucket:
        """Return a bucket with its payload, a view of the buffer. Raises ValueError if another memory has it."""
        if self._token not in found.tokens:
            raise ValueError("the bucket is in other buffers than those of this worker; share their handles again")
        payload = self._buffers[found.bucket.index % NUM_BUFFERS][: found.num_bytes]
        return dataclasses.replace(found.bucket, payload=payload)

    def finish(self) -> None:
        """Wait until the device has read what was enqueued, so that a bucket may be acknowledged."""
        _synchronize(self._device)


class OpenedMemory:
    """The buffers of one receiver, opened by a sender, once."""

    def __init__(self, handles: DeviceHandles):
        """Open the buffers. Raises RuntimeError or OSError if they cannot be."""
        self.token = handles.token
        self._buffers = [open_shared(handle) for handle in handles.buffers]

    @property
    def bucket_bytes(self) -> int:
        """Bytes of the largest bucket for which there is room."""
        return min(map(len, self._buffers))

    def buffer(self, index: int, num_bytes: int) -> Tensor:
        """Return the memory for the payload of bucket `index`, uint8 [num_bytes]."""
        return self._buffers[index % NUM_BUFFERS][:num_bytes]


class DeviceSender(WeightSender):
    """Sender into the buffers of receivers on one accelerator: packed into those of the first, copied to the others.

    The caller acknowledges: it asks for bucket i + 2 after every receiver has finished with bucket i.
    """

    def __init__(
        self,
        memories: Sequence[OpenedMemory],
        layout: BucketLayout,
        beside: Callable[[WeightBucket], WeightBucket | SharedBucket] | None = None,
    ):
        """memories: at least one. beside: returns a copy of a bucket for receivers elsewhere; None: there are none.

        Raises ValueError if a bucket of the layout is larger than their buffers.
        """
        self._memories = memories
        self._layout = layout
        self._beside = beside
        largest = max(map(bucket_num_bytes, layout.buckets))
        room = min(memory.bucket_bytes for memory in memories)
        if largest > room:
            raise ValueError(f"a bucket has {largest} bytes, the receiver's buffers {room}")

    def buffer(self, index: int) -> Tensor:
        """Return the memory for the payload of bucket `index`, uint8 [its size]."""
        return self._memories[0].buffer(index, bucket_num_bytes(self._layout.buckets[index]))

    def header(self, bucket: WeightBucket) -> DeviceBucket:
        payload = bucket.payload
        assert isinstance(payload, Tensor)  # of `buffer`
        for memory in self._memories[1:]:
            memory.buffer(bucket.index, len(payload)).copy_(payload, non_blocking=True)
        copied = None if self._beside is None else self._beside(bucket)
        _synchronize(payload.device)  # another process does not wait for this one's stream
        empty = dataclasses.replace(bucket, payload=EMPTY_PAYLOAD)
        return DeviceBucket(empty, tuple(memory.token for memory in self._memories), len(payload), copied)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
