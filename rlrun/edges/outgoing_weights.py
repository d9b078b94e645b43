"""Outgoing weights of an actor rank: the layout of a version, and the sender that each of its buckets takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.distributed import TCPStore

from rlrun.config.schema import RunConfig
from rlrun.edges.buckets import (
    BucketLayout,
    ObjectStoreSender,
    WeightSender,
    bucket_num_bytes,
    lay_out,
    pack,
)
from rlrun.edges.collective import CollectiveBackend, CollectiveGroup, CollectiveSender, open_store
from rlrun.edges.device_memory import DeviceSender, OpenedMemory
from rlrun.edges.host_memory import SharedSender, WeightMemory
from rlrun.edges.weights import DeviceHandles, SentBucket, SharedBucket, WeightBucket
from rlrun.system.telemetry import Telemetry

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class OutgoingWeights:
    """Publishes the policy of the actor ranks, bucket by bucket, or by one broadcast.

    All ranks gather; those that send also pack. has_base, in all methods: every rollout worker has the base under the
    adapters.
    """

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry):
        self._config = config
        self._rank = rank
        self._telemetry = telemetry
        self._named_weights: Callable[[bool], Iterator[tuple[str, torch.Tensor]]] | None = None
        self._layouts: dict[bool, BucketLayout] = {}  # by has_base
        self._store: TCPStore | None = None
        self._group: CollectiveGroup | None = None  # with the collective transport
        self._collective: dict[bool, CollectiveSender] = {}  # through `_group`, by has_base
        self._memory: tuple[bool, WeightMemory] | None = None  # for buckets of one layout
        self._opened: list[OpenedMemory] = []  # of the rollout workers on this rank's accelerator
        self._gathered: Iterator[tuple[str, torch.Tensor]] = iter(())
        self._sent: Iterator[SentBucket] = iter(())

    # --- connections ------------------------------------------------------------------------

    def open_group(self, address: str, port: int) -> int:
        """Listen for the rollout workers on `port` (0: any) and return it; rank 0, with the collective transport."""
        self._sent = iter(())
        if self._group is not None:  # left from before a loss
            self._group.close()
        self._group = None
        self._store = None  # it occupies the port
        self._collective = {}
        self._store = open_store(address, self._config.cluster.start_deadline_s, port)
        return self._store.port

    def join_group(self, planned: str) -> None:
        """Connect with every rollout worker, over "gloo" or "nccl"; rank 0, with the collective transport."""
        deadline_s = self._config.cluster.start_deadline_s
        size = 1 + self._config.rollout.num_workers
        with self._telemetry.span("form weight mesh"):
            if self._store is None:
                raise RuntimeError("open_group() comes first")
            self._group = CollectiveGroup(self._store, 0, size, deadline_s, CollectiveBackend(planned))
        self._collective = {}

    def open_device_memory(self, *handles: DeviceHandles) -> str:
        """Open buffers of the rollout workers that share this rank's accelerator and take weights there.

        Those of other workers are closed. Returns why it cannot be; "" if it can.
        """
        held = {memory.token: memory for memory in self._opened}
        self._opened = []
        fault = next((one.fault for one in handles if one.fault), "")
        if fault:
            return fault
        with self._telemetry.span("open device memory"):
            try:
                self._opened = [held.get(one.token) or OpenedMemory(one) for one in handles]
            except (RuntimeError, OSError) as error:  # of CUDA
                return f"{self._telemetry.worker} cannot open it: {error}"
        return ""

    # --- layout -----------------------------------------------------------------------------

    def load(
        self,
        weight_layout: Callable[[bool], NamedTensors],
        named_weights: Callable[[bool], Iterator[tuple[str, torch.Tensor]]],
    ) -> None:
        """Lay out the weights of a policy. Both functions take has_base, see `Learner`."""
        bucket_bytes = self._config.weight_sync.bucket_bytes
        self._layouts = {has_base: lay_out(weight_layout(has_base), bucket_bytes) for has_base in (False, True)}
        self._named_weights = named_weights
        self._collective = {}
        self._free_memory()

    def layout(self, has_base: bool) -> BucketLayout:
        """Return the layout of the weights in buckets."""
        if not self._layouts:
            raise RuntimeError("load() comes first")
        return self._layouts[has_base]

    def num_buckets(self) -> tuple[int, int]:
        """Return the number of buckets of a version for receivers without and with the base."""
        return len(self.layout(False).buckets), len(self.layout(True).buckets)

    def largest_bucket(self) -> int:
        """Return the bytes of the largest bucket of any version."""
        return max(bucket_num_bytes(slices) for has in (False, True) for slices in self.layout(has).buckets)

    # --- sending ----------------------------------------------------------------------------

    def pack(self, policy_version: int, index: int, has_base: bool, is_shared: bool | None) -> SentBucket | None:
        """Gather bucket `index` of the present weights on all ranks. Ranks that send return it, the others None.

        A rank with `open_device_memory` sends there; every rollout worker there has finished with bucket index - 2.
        Rank 0 sends to the others. is_shared: others are on the node of rank 0 and have taken the previous version: by
        shared memory; None: there are no others.
        """
        if index == 0:
            self._publish(policy_version, has_base, self._sender(has_base, is_shared if self._rank == 0 else None))
        with self._telemetry.span("pack weights", f"version {policy_version}, bucket {index}"):
            is_sender = bool(self._opened) or (self._rank == 0 and is_shared is not None)
            packed = next(self._sent) if is_sender else None
            for _ in () if is_sender else self.layout(has_base).buckets[index]:  # take part in the gathering
                next(self._gathered)
        if index == len(self.layout(has_base).buckets) - 1:  # else the last whole tensors stay on the device
            self._sent = iter(())
            self._gathered = iter(())
        return packed

    def broadcast(self, policy_version: int, has_base: bool) -> None:
        """Gather the present weights on all ranks and send them from rank 0, with the collective transport."""
        with self._telemetry.span("broadcast weights", f"version {policy_version}"):
            self._publish(policy_version, has_base, self._collective_sender(has_base))
            try:
                for _ in self._sent if self._rank == 0 else self._gathered:
                    pass  # a collective transport carries the buckets itself
            finally:
                for _ in self._gathered:  # also after the loss of a receiver: the other ranks still gather
                    pass

    def _publish(self, policy_version: int, has_base: bool, sender: WeightSender) -> None:
        if self._named_weights is None:
            raise RuntimeError("load() comes first")
        self._gathered = self._named_weights(has_base)
        is_checksummed = self._config.weight_sync.is_checksum_verified
        packed = pack(self._gathered, self.layout(has_base), policy_version, is_checksummed, sender.buffer)
        self._sent = sender.send(packed)

    def _sender(self, has_base: bool, is_shared: bool | None) -> WeightSender:
        if self._opened:
            beside = None if is_shared is None else partial(self._beside, has_base, is_shared)
            return DeviceSender(self._opened, self.layout(has_base), beside)
        return SharedSender(self._shared_memory(has_base)) if is_shared else ObjectStoreSender()

    def _collective_sender(self, has_base: bool) -> WeightSender:
        if self._group is None:  # of another rank than 0, which only gathers
            return ObjectStoreSender()
        if has_base not in self._collective:
            self._collective[has_base] = CollectiveSender(self._group, self.layout(has_base))
        return self._collective[has_base]

    def _beside(self, has_base: bool, is_shared: bool, bucket: WeightBucket) -> WeightBucket | SharedBucket:
        """Return a copy of a bucket in memory of the host."""
        if is_shared:
            return SharedSender(self._shared_memory(has_base)).copied(bucket)
        return replace(bucket, payload=bucket.on_host())

    def _shared_memory(self, has_base: bool) -> WeightMemory:
        """Return the memory for a layout; that of the other one, which had the base, is freed."""
        if self._memory is None or self._memory[0] != has_base:
            self._free_memory()
            self._memory = has_base, WeightMemory(self.layout(has_base))
        return self._memory[1]

    def _free_memory(self) -> None:
        if self._memory is not None:
            self._memory[1].close()
            self._memory = None

    def close(self) -> None:
        """Free the memory for weights on their way."""
        self._free_memory()
