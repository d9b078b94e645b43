"""Collective transport: broadcasts buckets in a process group of actor rank 0 and the rollout workers.

The group is separate from the FSDP group, so that a lost rollout worker does not affect training. Payloads are on the
device of the group: with NCCL they go from accelerator to accelerator. Each end holds two of them there (see
`CollectiveReceiver`), a bucket being `weight_sync.bucket_bytes` or one larger tensor. The group is formed once,
before models load: rank 0 listens, all ranks check in at a store, and only then connect, because an unanswered Gloo
connection waits five times its timeout and does not name the missing rank.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore

from rlrun.edges.buckets import BucketLayout, WeightSender, bucket_num_bytes
from rlrun.edges.weights import TensorSlice, WeightBucket
from rlrun.system.errors import ExitStatus, RunError

_CHECK_IN_POLL_S = 0.05


class CollectiveBackend(Enum):
    gloo = "gloo"
    nccl = "nccl"


def open_store(host: str, deadline_s: float, port: int = 0) -> TCPStore:
    """Open the store in the process of actor rank 0; peers connect to `host` and `store.port`. port: 0 is any.

    Listens on `host` only; torch itself would listen on all interfaces. Raises RunError if the port is taken.
    """
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise RunError(
            f"Actor rank 0 cannot listen for rollout workers at {host}:{port}.",
            "cluster.store_port",
            port - 1,  # weight sync uses the port after the configured one
            cause=str(error),
            remedy=f"End the process that listens there (ss -ltnp 'sport = :{port}'), set another port, or remove the "
            "key.",
            exit_status=ExitStatus.doctor,
        ) from error
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=deadline_s),
        master_listen_fd=listener.detach(),
    )


def connect_store(host: str, port: int, deadline_s: float) -> TCPStore:
    """Connect to the store from a rollout worker. Raises ConnectionError naming the address."""
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=deadline_s))
    except RuntimeError as error:
        raise ConnectionError(
            f"weight sync: no answer from actor rank 0 at {host}:{port} within {deadline_s:g} s ({error}); "
            "check that its node is up and that no firewall drops the port"
        ) from error


class CollectiveGroup:
    """A broadcast group: rank 0 sends, ranks 1 to size - 1 receive. Every wait ends after `deadline_s`.

    Example::

        store = open_store("10.77.0.1", 60.0)                              # actor rank 0
        group = CollectiveGroup(store, rank=0, size=3, deadline_s=60.0)
    """

    def __init__(
        self,
        store: TCPStore,
        rank: int,
        size: int,
        deadline_s: float,
        backend: CollectiveBackend = CollectiveBackend.gloo,
    ):
        """Form the group; all `size` ranks call this. Raises TimeoutError naming the ranks that did not check in."""
        self.rank = rank
        self.deadline_s = deadline_s
        self.device = torch.device("cuda" if backend is CollectiveBackend.nccl else "cpu")
        self._store = store  # the connection must outlive the group
        _await_all_ranks(store, rank, size, deadline_s)
        self._group = _process_group(store, rank, size, deadline_s, backend)
        self.broadcast(torch.zeros(1, dtype=torch.uint8))  # connects all ranks now, not at the first sync

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Broadcast rank 0's tensor. Raises TimeoutError or ConnectionError naming the suspected rank."""
        return self.start(tensor).finish()

    def start(self, tensor: torch.Tensor) -> Broadcast:
        """Start a broadcast without waiting; `tensor` must not change before `Broadcast.finish`."""
        options = BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=self.deadline_s)
        moved = tensor.to(self.device)
        try:
            return Broadcast(self, moved, self._group.broadcast([moved], options))
        except RuntimeError as error:
            raise self.with_cause(error, 0.0) from error

    def with_cause(self, error: RuntimeError, waited_s: float) -> OSError:
        """Return the exception for torch's `error`, with the suspected rank."""
        side = "a rollout worker that is not receiving" if self.rank == 0 else "actor rank 0, which is not sending"
        kind = TimeoutError if waited_s >= 0.9 * self.deadline_s else ConnectionError
        return kind(f"weight sync, rank {self.rank}: broadcast failed after {waited_s:.1f} s; suspect {side} ({error})")

    def close(self) -> None:
        """Leave the group; waiting peers get a ConnectionError."""
        self._group.abort()


class Broadcast:
    """A broadcast in flight."""

    def __init__(self, group: CollectiveGroup, tensor: torch.Tensor, work: Any):
        self._group = group
        self._tensor = tensor
        self._work = work
        self._started = time.monotonic()

    def finish(self) -> torch.Tensor:
        """Wait for rank 0's values. Raises TimeoutError or ConnectionError naming the suspected rank."""
        try:
            self._work.wait(timedelta(seconds=self._group.deadline_s))
        except RuntimeError as error:
            raise self._group.with_cause(error, time.monotonic() - self._started) from error
        return self._tensor


class CollectiveSender(WeightSender):
    """Sender at rank 0: a header per version, then payloads; the next payload is packed during a broadcast."""

    def __init__(self, group: CollectiveGroup, layout: BucketLayout):
        self._group = group
        self._layout = layout
        self._buffers = Buffers(group.device)
        self._in_flight: list[Broadcast] = []

    def buffer(self, index: int) -> np.ndarray | torch.Tensor:
        """Return the memory for the payload of bucket `index`: one of two buffers, reused for every version."""
        return _as_payload(self._buffers.of(index % 2, bucket_num_bytes(self._layout.buckets[index])))

    def header(self, bucket: WeightBucket) -> None:
        if bucket.index == 0:
            self._in_flight = []  # of a version that was not sent to its end
            self._send_header(bucket)
        self.finish()  # two concurrent broadcasts take longer than two consecutive ones
        self._in_flight = [self._group.start(torch.as_tensor(bucket.payload))]
        if bucket.checksum is not None:
            self._in_flight.append(self._group.start(torch.tensor([bucket.checksum])))

    def finish(self) -> None:
        for broadcast in self._in_flight:
            broadcast.finish()
        self._in_flight = []

    def _send_header(self, first: WeightBucket) -> None:
        header = _encode_header(first.policy_version, first.checksum is not None, self._layout)
        self._group.broadcast(torch.tensor([len(header)]))
        self._group.broadcast(torch.from_numpy(header))


class Buffers:
    """Numbered buffers, reused for every version; each grows to the largest requested size.

    On the host they are pinned if this process uses CUDA.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._held: dict[int, torch.Tensor] = {}

    def of(self, number: int, num_bytes: int) -> torch.Tensor:
        """Return buffer `number`, uint8 [num_bytes], with any content."""
        held = self._held.get(number)
        if held is None or len(held) < num_bytes:
            is_pinned = self._device.type == "cpu" and torch.cuda.is_available() and torch.cuda.is_initialized()
            held = torch.empty(num_bytes, dtype=torch.uint8, device=self._device, pin_memory=is_pinned)
            self._held[number] = held
        return held[:num_bytes]


class CollectiveReceiver:
    """Receiver at every other rank.

    is_kept: buckets are in host memory and valid until the next version is received, for a backend that needs all of
    them together. False: they are on the device of the group and valid until the next bucket is requested, so that this
    process holds two.
    """

    def __init__(self, group: CollectiveGroup, is_kept: bool):
        self._group = group
        self._is_kept = is_kept
        self._arriving = Buffers(group.device)
        self._kept = Buffers(torch.device("cpu"))

    def receive(self) -> Iterator[WeightBucket]:
        """Yield the buckets of one policy version, in order. Raises TimeoutError naming the wait."""
        policy_version, is_checksummed, buckets = self._receive_header()
        following = self._start_bucket(0, buckets, is_checksummed)
        for index, slices in enumerate(buckets):
            arriving = following
            following = self._start_bucket(index + 1, buckets, is_checksummed)
            payload, *checksum = [broadcast.finish() for broadcast in arriving]
            if self._is_kept and payload.device.type == "cuda":
                payload = self._kept.of(index, len(payload)).copy_(payload)
            expected = int(checksum[0]) if checksum else None
            yield WeightBucket(policy_version, index, len(buckets), slices, _as_payload(payload), expected)

    def _receive_header(self) -> tuple[int, bool, list[tuple[TensorSlice, ...]]]:
        num_bytes = int(self._group.broadcast(torch.zeros(1, dtype=torch.int64)))
        return _decode_header(self._group.broadcast(torch.empty(num_bytes, dtype=torch.uint8)).cpu().numpy())

    def _start_bucket(
        self, index: int, buckets: list[tuple[TensorSlice, ...]], is_checksummed: bool
    ) -> list[Broadcast]:
        """Start the broadcasts of a bucket's payload and checksum; none after the last bucket."""
        if index == len(buckets):
            return []
        number = index if self._is_kept and self._group.device.type == "cpu" else index % 2
        begun = [self._group.start(self._arriving.of(number, bucket_num_bytes(buckets[index])))]
        return [*begun, self._group.start(torch.zeros(1, dtype=torch.int64))] if is_checksummed else begun


def _as_payload(memory: torch.Tensor) -> np.ndarray | torch.Tensor:
    return memory if memory.device.type == "cuda" else memory.numpy()


def _await_all_ranks(store: TCPStore, rank: int, size: int, deadline_s: float) -> None:
    store.set(f"rank/{rank}", "here")
    ends = time.monotonic() + deadline_s
    missing = list(range(size))
    while missing:
        missing = [peer for peer in missing if not store.check([f"rank/{peer}"])]
        if missing and time.monotonic() > ends:
            raise TimeoutError(
                f"weight sync, rank {rank} of {size}: ranks {missing} did not join within {deadline_s:g} s "
                "(rank 0 is actor rank 0, rank i+1 is rollout worker i); look at their logs"
            )
        time.sleep(_CHECK_IN_POLL_S if missing else 0)


def _process_group(
    store: TCPStore, rank: int, size: int, deadline_s: float, backend: CollectiveBackend
) -> Any:  # torch's stubs lack the methods of its process groups
    if backend is CollectiveBackend.gloo:
        return ProcessGroupGloo(store, rank, size, timedelta(seconds=deadline_s))
    from rlrun.edges.nccl_group import nccl_group  # CPU builds of torch have no NCCL

    return nccl_group(store, rank, size, deadline_s)


def _encode_header(policy_version: int, is_checksummed: bool, layout: BucketLayout) -> np.ndarray:
    buckets = [[asdict(where) for where in slices] for slices in layout.buckets]
    return np.frombuffer(bytearray(json.dumps([policy_version, is_checksummed, buckets]).encode()), np.uint8)


def _decode_header(header: np.ndarray) -> tuple[int, bool, list[tuple[TensorSlice, ...]]]:
    policy_version, is_checksummed, buckets = json.loads(header.tobytes())
    return policy_version, is_checksummed, [tuple(map(_slice, slices)) for slices in buckets]


def _slice(fields: dict[str, Any]) -> TensorSlice:
    return TensorSlice(**fields | {"shape": tuple(fields["shape"])})
