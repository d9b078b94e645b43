"""Shared memory transport for one node: actor and rollout workers map the same memory, so there are two copies.

The memory has no name, so the kernel frees it when the last process that maps it ends. It holds one version: the actor
writes the next one after every rollout worker has applied the last one. Processes that use CUDA pin their mapping.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import secrets
from itertools import accumulate

import numpy as np
import torch

from rlrun.edges.buckets import ALIGNMENT_BYTES, EMPTY_PAYLOAD, BucketLayout, WeightSender, bucket_num_bytes
from rlrun.edges.weights import SharedBucket, WeightBucket
from rlrun.system.notices import notice


def pin(memory: np.ndarray) -> bool:
    """Pin mapped memory, so that the accelerator copies it several times as fast.

    Returns False if this process uses no CUDA, or on a failure: copies are then slower and equally correct. Call
    `unpin` before the memory is unmapped.
    """
    if not (torch.backends.cuda.is_built() and torch.cuda.is_initialized()):
        return False
    error = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
    if error:
        with contextlib.suppress(RuntimeError):  # CUDA keeps the error, and the next kernel would report it as its own
            torch.zeros(1, device="cuda")
        notice(
            f"{memory.nbytes / 1e9:.1f} GB of shared memory could not be pinned (CUDA error {error}), so weight sync "
            "copies it several times more slowly: raise `ulimit -l` (of a container: --ulimit memlock=-1) and see "
            "`free -g` for the memory of this node"
        )
    return not error


def unpin(memory: np.ndarray) -> None:
    """Undo a `pin` that returned True."""
    torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)


class WeightMemory:
    """Shared memory of the actor for all buckets of a layout, reused for every version.

    Example::

        memory = WeightMemory(layout)
        sender = SharedSender(memory)
        headers = sender.send(pack(tensors, layout, policy_version, buffer=sender.buffer))
    """

    def __init__(self, layout: BucketLayout):
        sizes = [bucket_num_bytes(slices) for slices in layout.buckets]
        steps = [-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes]
        self._ranges = list(zip(accumulate(steps, initial=0), sizes, strict=False))
        self.token = secrets.token_hex(8)
        self.fd = os.memfd_create("rlrun-weights")
        num_bytes = max(1, sum(steps))
        os.ftruncate(self.fd, num_bytes)
        self._memory = np.frombuffer(mmap.mmap(self.fd, num_bytes), np.uint8)
        self.is_pinned = pin(self._memory)

    def buffer(self, index: int) -> np.ndarray:
        """Return the memory of bucket `index`, uint8 [its size]."""
        offset, num_bytes = self._ranges[index]
        return self._memory[offset : offset + num_bytes]

    def offset(self, index: int) -> int:
        """Return the offset of bucket `index` in bytes."""
        return self._ranges[index][0]

    def close(self) -> None:
        """Close the descriptor; receivers keep their mappings."""
        if self.is_pinned:
            unpin(self._memory)
            self.is_pinned = False
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SharedSender(WeightSender):
    """Sender of offsets in shared memory."""

    def __init__(self, memory: WeightMemory):
        self._memory = memory

    def buffer(self, index: int) -> np.ndarray:
        return self._memory.buffer(index)

    def header(self, bucket: WeightBucket) -> SharedBucket:
        memory = self._memory
        empty = dataclasses.replace(bucket, payload=EMPTY_PAYLOAD)
        num_bytes = bucket.payload.nbytes
        return SharedBucket(empty, memory.token, os.getpid(), memory.fd, memory.offset(bucket.index), num_bytes)

    def copied(self, bucket: WeightBucket) -> SharedBucket:
        """Return the header of a bucket that was packed elsewhere, after a copy into the shared memory."""
        place = self._memory.buffer(bucket.index)
        torch.as_tensor(place).copy_(torch.as_tensor(bucket.payload))
        return self.header(dataclasses.replace(bucket, payload=place))


class SharedReceiver:
    """Receiver at a rollout worker, which maps the actor's memory once."""

    def __init__(self) -> None:
        self._token = ""
        self._memory = EMPTY_PAYLOAD
        self._is_pinned = False

    def open(self, found: SharedBucket) -> WeightBucket:
        """Return the bucket with its payload, a view of the shared memory. Raises OSError if the actor has ended."""
        if self._token != found.token:
            fd = os.open(f"/proc/{found.pid}/fd/{found.fd}", os.O_RDWR)
            try:
                mapped = mmap.mmap(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
            self.close()
            self._memory = np.frombuffer(mapped, np.uint8)
            self._token = found.token
            self._is_pinned = pin(self._memory)
        payload = self._memory[found.offset : found.offset + found.num_bytes]
        return dataclasses.replace(found.bucket, payload=payload)

    def close(self) -> None:
        """Drop the mapping; payloads that are still in use keep it."""
        if self._is_pinned:
            unpin(self._memory)
        self._memory = EMPTY_PAYLOAD
        self._token = ""
        self._is_pinned = False
