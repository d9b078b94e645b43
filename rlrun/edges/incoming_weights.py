"""Incoming weights of a rollout worker: the receiver of each transport, and the check that what arrived is in use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from rlrun.config.schema import ClusterKind, RolloutBackendKind, RunConfig
from rlrun.edges.buckets import checksum, on_device, sample_values, unpack
from rlrun.edges.collective import Buffers, CollectiveBackend, CollectiveGroup, CollectiveReceiver, connect_store
from rlrun.edges.device_memory import DeviceMemory
from rlrun.edges.host_memory import SharedReceiver
from rlrun.edges.weights import DeviceBucket, DeviceHandles, SentBucket, SharedBucket, TensorSlice, WeightBucket
from rlrun.edges.wrong_message import wrong_message
from rlrun.system.telemetry import Telemetry


class ArrivedWeights:
    """Samples of the newest version that arrived, to verify that the policy has these weights.

    Example::

        arrived = ArrivedWeights("rollout/0")
        arrived.add(bucket)                                # before it is applied; raises RunError
        arrived.require(policy_version, backend.held)      # before the first action of a version; raises RunError
    """

    def __init__(self, worker: str):
        self._worker = worker
        self._version = -1
        self._num_buckets = 0
        self._indices: set[int] = set()
        self._samples: dict[str, tuple[TensorSlice, Tensor]] = {}  # by tensor
        self._verified: int | None = None

    def accept(self, version: int) -> None:
        """Accept `version` without samples: its weights come from a policy folder."""
        self._verified = version

    def verify(self, bucket: WeightBucket) -> None:
        """Verify the checksum of a bucket. Raises RunError naming the sender."""
        if bucket.checksum is not None and checksum(bucket.payload) != bucket.checksum:
            raise wrong_message(
                "actor/0",
                f"bucket {bucket.index} of the weights of version {bucket.policy_version} arrived with other bytes "
                f"than were sent, at {self._worker}",
                "its checksum differs: the memory or the link between them changes data",
            )

    def add(self, bucket: WeightBucket, is_verified_later: bool = False) -> None:
        """Verify a bucket, unless its payload will be copied to a device first, and sample its tensors. Raises RunError
        naming the sender."""
        if not is_verified_later:
            self.verify(bucket)
        if bucket.policy_version != self._version or bucket.index in self._indices:
            self._version = bucket.policy_version
            self._num_buckets = bucket.num_buckets
            self._indices = set()
            self._samples = {}
            self._verified = None
        self._indices.add(bucket.index)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # the array is only read
            for where, (name, tensor) in zip(bucket.slices, unpack(bucket), strict=True):
                self._samples[name] = where, sample_values(tensor)

    def require(self, version: int, held: Callable[[str], Tensor | None]) -> None:
        """Raise RunError, naming this worker, unless its policy has the weights of `version`. Compares once a version.

        held: returns a tensor of the policy by name; None: the backend stores it in another form.
        """
        if version == self._verified:
            return
        if version != self._version or len(self._indices) != self._num_buckets:
            newest = str(self._version) if self._version >= 0 else "none"
            raise wrong_message(
                self._worker,
                f"it acts as policy version {version}, whose weights it has not received",
                f"the newest version that arrived there completely is {newest}",
            )
        for name, (where, sample) in self._samples.items():
            found = held(name)
            if found is None or tuple(found.shape) != where.shape:
                continue
            have = sample_values(found).to(sample.device, sample.dtype)
            if not torch.equal(have.view(torch.uint8), sample.view(torch.uint8)):
                raise wrong_message(
                    self._worker,
                    f"it acts as policy version {version}, but with other weights",
                    f"{name} differs from the values that arrived",
                )
        self._verified = version


class IncomingWeights:
    """Opens what the actor ranks send to a rollout worker.

    Example::

        with incoming.opened(sent, is_offloaded=False) as bucket:     # raises RunError naming the sender
            backend.apply(bucket)
    """

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry):
        self._config = config
        self._rank = rank
        self._telemetry = telemetry
        self.arrived = ArrivedWeights(telemetry.worker)
        self._shared = SharedReceiver()
        self._memory: DeviceMemory | None = None  # into which the actor rank on this accelerator writes weights
        self._group: CollectiveGroup | None = None  # with the collective transport
        self._receiver: CollectiveReceiver | None = None
        self._kept = Buffers(torch.device("cpu"))  # for weights that arrive while the policy is offloaded

    def share_device_memory(self, bucket_bytes: int) -> DeviceHandles:
        """Return handles of buffers on this worker's accelerator, for an actor rank there; the same buffers every time.

        bucket_bytes: of the largest bucket. The `fault` says why there are none.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with self._telemetry.span("share device memory"):
            try:
                if self._memory is None or self._memory.bucket_bytes < bucket_bytes:
                    self._memory = None  # frees it first
                    self._memory = DeviceMemory(bucket_bytes, device)
                return self._memory.shared()
            except RuntimeError as error:  # of CUDA, also for a lack of memory
                self._memory = None
                return DeviceHandles("", (), f"{self._telemetry.worker} cannot share it: {error}")

    def join_group(self, address: str, port: int, planned: str) -> None:
        """Connect with actor rank 0 and the other rollout workers, with the collective transport."""
        deadline_s = self._config.cluster.start_deadline_s
        size = 1 + self._config.rollout.num_workers
        if self._group is not None:  # left from before a loss
            self._group.close()
        self._group = self._receiver = None
        with self._telemetry.span("form weight mesh"):
            store = connect_store(address, port, deadline_s)
            self._group = CollectiveGroup(store, 1 + self._rank, size, deadline_s, CollectiveBackend(planned))

    def received(self) -> Iterator[WeightBucket]:
        """Yield the buckets of the version that is being broadcast, with the collective transport."""
        if self._receiver is None:
            if self._group is None:
                raise RuntimeError("join_group() comes first")
            config = self._config
            is_kept = config.rollout.backend is RolloutBackendKind.sglang or bool(config.placement.offload)
            self._receiver = CollectiveReceiver(self._group, is_kept)
        return self._receiver.receive()

    @contextmanager
    def opened(self, sent: SentBucket, is_offloaded: bool) -> Iterator[WeightBucket]:
        """Yield a bucket with its payload, verified; afterwards the sender may overwrite its memory, unless that is on
        the host.

        is_offloaded: of the policy. Raises RunError naming the sender if its bytes are not those that were sent.
        """
        if isinstance(sent, DeviceBucket) and self._memory is not None:
            try:
                yield self._checked(self._memory.open(sent), is_offloaded)
            finally:
                self._memory.finish()
            return
        if isinstance(sent, DeviceBucket):
            if sent.beside is None:
                raise ValueError("the bucket is in device memory, and this worker has shared none")
            sent = sent.beside
        if isinstance(sent, SharedBucket):
            sent = self._shared.open(sent)
        elif is_offloaded and self._group is None and self._config.cluster.kind is ClusterKind.ray:
            sent = self._in_own_memory(sent)
        yield self._checked(sent, is_offloaded)

    def _in_own_memory(self, bucket: WeightBucket) -> WeightBucket:
        """Return a bucket of Ray's store in memory of this worker, which keeps it while it is offloaded."""
        sent = torch.as_tensor(bucket.payload)
        return replace(bucket, payload=self._kept.of(bucket.index, len(sent)).copy_(sent).numpy())

    def _checked(self, bucket: WeightBucket, is_offloaded: bool) -> WeightBucket:
        is_hf = self._config.rollout.backend is RolloutBackendKind.hf  # an engine takes weights from the host
        if is_hf and bucket.checksum is not None and torch.cuda.is_available() and not is_offloaded:
            bucket = on_device(bucket, torch.device("cuda"))
        self.arrived.add(bucket, is_verified_later=is_hf and is_offloaded)
        self._telemetry.count("weight_bytes", bucket.payload.nbytes)
        self._telemetry.count("weight_buckets")
        return bucket

    def close(self) -> None:
        """Free the memory."""
        self._memory = None
        self._shared.close()
