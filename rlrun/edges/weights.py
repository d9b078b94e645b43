"""The edge from actor to rollout workers: buckets of weights, as each transport carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TensorSlice:
    """Position of one tensor in a bucket.

    Example: TensorSlice("projector.fc1.weight", "bfloat16", (64, 32), 0, 4096)
    """

    name: str
    dtype: str  # torch dtype name without "torch."
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the payload
    num_bytes: int


@dataclass(frozen=True, eq=False)
class WeightBucket:
    """actor -> rollout: part of a policy version, packed into one buffer.

    A version is complete when buckets 0 .. num_buckets-1 have arrived, and is not used before.
    """

    policy_version: int
    index: int
    num_buckets: int
    slices: tuple[TensorSlice, ...]
    payload: Any  # uint8 [num_bytes]: an array, or a torch tensor on an accelerator
    checksum: int | None = None  # see `weight_sync.buckets.checksum`; None: not asked for

    def on_host(self) -> np.ndarray:
        """Return the payload in host memory, copied if it is on an accelerator."""
        return self.payload if isinstance(self.payload, np.ndarray) else self.payload.cpu().numpy()


@dataclass(frozen=True, eq=False)
class SharedBucket:
    """actor -> rollout on the same node: a bucket whose payload is in shared memory.

    Example: SharedBucket(WeightBucket(7, 0, 2, …), "9f3a…", pid=4711, fd=31, offset=0, num_bytes=268435456)
    """

    bucket: WeightBucket  # with an empty payload
    token: str  # of the memory; another one is other memory, even if pid and fd are the same
    pid: int  # of the actor worker that holds it
    fd: int  # there
    offset: int  # bytes
    num_bytes: int


@dataclass(frozen=True)
class DeviceHandles:
    """rollout -> actor on the same accelerator: buffers of the rollout worker's device memory, to write weights into.

    Example: DeviceHandles("9f3a…", (b"…", b"…"))
    """

    token: str  # of the memory
    buffers: tuple[bytes, ...]  # by which another process opens them
    fault: str = ""  # why there are none


@dataclass(frozen=True, eq=False)
class DeviceBucket:
    """actor -> rollout on the same accelerator: a bucket whose payload is in one of each rollout worker's buffers.

    Example: DeviceBucket(WeightBucket(7, 0, 2, …), ("9f3a…",), num_bytes=536870912)
    """

    bucket: WeightBucket  # with an empty payload
    tokens: tuple[str, ...]  # of the memories
    num_bytes: int
    beside: WeightBucket | SharedBucket | None = None  # the same bucket for rollout workers on other accelerators


SentBucket = WeightBucket | SharedBucket | DeviceBucket
