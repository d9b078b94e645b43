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
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # teaches ForkingPickler to pass on memory in place of its content
from torch import Tensor

from rlrun.data.messages import DeviceBucket, DeviceHandles, WeightBucket
from rlrun.weight_sync.buckets import EMPTY_PAYLOAD, BucketLayout, bucket_num_bytes

NUM_BUFFERS = 2  # one is read while the other is written


def share(buffer: Tensor) -> bytes:
    """Return a handle by which another process on the same accelerator can open a buffer that stays allocated."""
    return bytes(ForkingPickler.dumps(buffer))


def open_shared(handle: bytes) -> Tensor:
    """Return the memory of a handle from `share`, which a worker of the same run made."""
    return ForkingPickler.loads(handle)


class DeviceMemory:
    """The two buffers of a receiver.

    Example::

        memory = DeviceMemory(512 * 2**20, torch.device("cuda"))
        sender = DeviceSender(memory.handles, layout)              # in another process
        for found in sender.send(pack(…, buffer=sender.buffer)):
            backend.apply(memory.bucket(found)); memory.finish()   # then the sender may go on to the next but one
    """

    def __init__(self, bucket_bytes: int, device: torch.device, share: Callable[[Tensor], bytes] = share):
        """bucket_bytes: of the largest bucket. share: makes the handle of a buffer."""
        self._device = device
        self._buffers = [torch.empty(bucket_bytes, dtype=torch.uint8, device=device) for _ in range(NUM_BUFFERS)]
        self.handles = DeviceHandles(secrets.token_hex(8), tuple(map(share, self._buffers)))

    def bucket(self, found: DeviceBucket) -> WeightBucket:
        """Return a bucket with its payload, a view of the buffer. Raises ValueError if another memory has it."""
        if found.token != self.handles.token:
            raise ValueError("the bucket is in other buffers than those of this worker; share their handles again")
        payload = self._buffers[found.bucket.index % NUM_BUFFERS][: found.num_bytes]
        return dataclasses.replace(found.bucket, payload=payload)

    def finish(self) -> None:
        """Wait until the device has read what was enqueued, so that a bucket may be acknowledged."""
        _synchronize(self._device)


class DeviceSender:
    """Sender into the buffers of one receiver, or of several on one accelerator that open the same ones.

    The caller acknowledges: it asks for bucket i + 2 after every receiver has finished with bucket i.
    """

    def __init__(
        self,
        handles: DeviceHandles,
        layout: BucketLayout,
        open_shared: Callable[[bytes], Tensor] = open_shared,
    ):
        """Open the buffers. Raises ValueError if a bucket of the layout is larger than they are."""
        self._token, self._layout = handles.token, layout
        self._buffers = [open_shared(handle) for handle in handles.buffers]
        largest, room = max(map(bucket_num_bytes, layout.buckets)), min(map(len, self._buffers))
        if largest > room:
            raise ValueError(f"a bucket has {largest} bytes, the receiver's buffers {room}")

    def buffer(self, index: int) -> Tensor:
        """Return the memory for the payload of bucket `index`, uint8 [its size]."""
        return self._buffers[index % NUM_BUFFERS][: bucket_num_bytes(self._layout.buckets[index])]

    def send(self, buckets: Iterable[WeightBucket]) -> Iterator[DeviceBucket]:
        """Yield what the caller must carry to the receivers, of buckets that were packed into `buffer`."""
        for bucket in buckets:
            payload = bucket.payload
            assert isinstance(payload, Tensor)  # of `buffer`
            _synchronize(payload.device)  # another process does not wait for this one's stream
            header = dataclasses.replace(bucket, payload=EMPTY_PAYLOAD)
            yield DeviceBucket(header, self._token, len(payload))


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
