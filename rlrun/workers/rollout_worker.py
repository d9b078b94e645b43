"""The rollout worker: runs the policy to choose actions, and takes new weights between chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from rlrun.config.schema import ClusterKind, RolloutBackendKind, RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.buckets import ArrivedWeights, on_device
from rlrun.edges.collective import Buffers, CollectiveBackend, CollectiveGroup, CollectiveReceiver, connect_store
from rlrun.edges.device_memory import DeviceMemory
from rlrun.edges.host_memory import SharedReceiver
from rlrun.edges.observations import Observation, check_observation
from rlrun.edges.spaces import PolicySpaces, Spaces
from rlrun.edges.weights import DeviceBucket, DeviceHandles, SharedBucket, WeightBucket
from rlrun.observability.timeline import profiled
from rlrun.policies.spec import policy_spec
from rlrun.rollout.backend import RolloutBackend
from rlrun.rollout.make import make_backend
from rlrun.system.telemetry import Telemetry


class RolloutWorker:
    """Holds one copy of the policy and answers one or more env workers, with all their rows in one batch."""

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry):
        self.config = config
        self.rank = rank
        self.telemetry = telemetry
        self._backend: RolloutBackend | None = None
        self._group: CollectiveGroup | None = None
        self._receiver: CollectiveReceiver | None = None
        self._shared = SharedReceiver()
        self._memory: DeviceMemory | None = None  # into which the actor rank on this accelerator writes weights
        self._is_offloaded = False
        self._kept = Buffers(torch.device("cpu"))  # for weights that arrive meanwhile, from another node
        self._arrived = ArrivedWeights(telemetry.worker)
        self._profiled = -1  # policy version of the last forward pass that was profiled

    def load(
        self, policy_folder: str, is_final: bool, is_base_on_device: bool = True, world: Spaces | None = None
    ) -> PolicySpaces:
        """Build the policy of `policy_folder`. Returns the spaces of its observations and actions.

        is_final: use its weights as policy version 0; else weight sync replaces them before the first action.
        is_base_on_device, world: see `make_backend`.
        """
        with self.telemetry.span("load"):
            progress = partial(self.telemetry.count, "signs_of_loading")
            self._backend = make_backend(self.config, policy_folder, progress, is_base_on_device, world)
            self._is_offloaded = False
            if is_final:
                self._backend.policy_version = 0
                self._arrived.accept(0)
        is_here = self.config.evaluation.server is None
        cameras = policy_spec(self.config).cameras(Path(policy_folder)) if is_here else ()
        backend = self._backend
        return PolicySpaces(backend.num_actions, backend.num_proprio, tuple(cameras), backend.notes)

    @property
    def backend(self) -> RolloutBackend:
        """Return the loaded backend."""
        if self._backend is None:
            raise RuntimeError("load() comes first")
        return self._backend

    @property
    def policy_version(self) -> int:
        """Return the version with which `act` answers now; -1 before the first, and while this worker is offloaded."""
        return -1 if self._backend is None or self._is_offloaded else self._backend.policy_version

    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        """Return one chunk per observation, in order, from one forward pass.

        Raises RunError naming the worker at fault for observations or weights that cannot be right.
        """
        for observation in observations:
            check_observation(observation, self.backend.num_proprio)
        self._arrived.require(self.policy_version, self.backend.held)
        self.telemetry.step = self.policy_version + 1
        began = time.monotonic()
        with self.telemetry.span("act"), self._profile():
            chunks = self.backend.act(observations)
        self.telemetry.count("acted_us", round(1e6 * (time.monotonic() - began)))
        self.telemetry.count("chunks", sum(len(observation.frames) for observation in observations))
        return chunks

    def _profile(self) -> AbstractContextManager[None]:
        """Profile the first forward pass with the policy version of a step of `logging.profile_steps`.

        An engine of SGLang has its own processes, which this profiler does not see.
        """
        version = self.policy_version
        is_hf = self.config.rollout.backend is RolloutBackendKind.hf
        if version == self._profiled or not is_hf:
            return nullcontext()
        self._profiled = version
        return profiled(Path(self.config.output_dir or "."), self.config.logging, version, self.telemetry.worker)

    def share_device_memory(self, bucket_bytes: int) -> DeviceHandles:
        """Return handles of buffers on this worker's accelerator, for an actor rank there; the same buffers every time.

        bucket_bytes: of the largest bucket. The `fault` says why there are none.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with self.telemetry.span("share device memory"):
            try:
                if self._memory is None or self._memory.bucket_bytes < bucket_bytes:
                    self._memory = None  # frees it first
                    self._memory = DeviceMemory(bucket_bytes, device)
                return self._memory.shared()
            except RuntimeError as error:  # of CUDA, also for a lack of memory
                self._memory = None
                return DeviceHandles("", (), f"{self.telemetry.worker} cannot share it: {error}")

    def apply(self, bucket: WeightBucket | SharedBucket | DeviceBucket) -> int:
        """Take one bucket of weights; the sender may then overwrite its memory, unless that is on the host.

        Returns the policy version in use afterwards. Raises RunError naming the sender if its bytes are not those that
        were sent.
        """
        if isinstance(bucket, DeviceBucket):
            if self._memory is not None:
                try:
                    return self._take(self._memory.bucket(bucket))
                finally:
                    self._memory.finish()
            if bucket.beside is None:
                raise ValueError("the bucket is in device memory, and this worker has shared none")
            bucket = bucket.beside
        if isinstance(bucket, SharedBucket):
            bucket = self._shared.map_bucket(bucket)
        elif self._is_offloaded and self._group is None and self.config.cluster.kind is ClusterKind.ray:
            bucket = self._beside(bucket)
        return self._take(bucket)

    def _take(self, bucket: WeightBucket) -> int:
        is_hf = self.config.rollout.backend is RolloutBackendKind.hf  # an engine takes weights from the host
        if is_hf and bucket.checksum is not None and torch.cuda.is_available() and not self._is_offloaded:
            bucket = on_device(bucket, torch.device("cuda"))
        self._arrived.add(bucket, is_verified_later=is_hf and self._is_offloaded)
        with self.telemetry.span("apply weights", f"version {bucket.policy_version}"):
            self.backend.apply(bucket)
        self.telemetry.count("weight_bytes", bucket.payload.nbytes)
        self.telemetry.count("weight_buckets")
        return self.backend.policy_version

    def _beside(self, bucket: WeightBucket) -> WeightBucket:
        """Return a bucket of Ray's store in memory of this worker, which keeps it while it is offloaded."""
        sent = torch.as_tensor(bucket.payload)
        return replace(bucket, payload=self._kept.of(bucket.index, len(sent)).copy_(sent).numpy())

    def discard_weights(self) -> None:
        """Drop the version that was being sent when a worker was lost; it is sent again."""
        self.backend.discard_staged()

    def join_weight_group(self, address: str, port: int, planned: str) -> None:
        """Connect with actor rank 0 and the other rollout workers, with the collective transport."""
        deadline_s = self.config.cluster.start_deadline_s
        size = 1 + self.config.rollout.num_workers
        if self._group is not None:  # left from before a loss
            self._group.close()
        self._group = self._receiver = None
        with self.telemetry.span("form weight mesh"):
            store = connect_store(address, port, deadline_s)
            self._group = CollectiveGroup(store, 1 + self.rank, size, deadline_s, CollectiveBackend(planned))

    def receive(self) -> int:
        """Receive the policy version that is being broadcast, with the collective transport. Returns the version."""
        if self._receiver is None:
            if self._group is None:
                raise RuntimeError("join_weight_group() comes first")
            is_kept = self.config.rollout.backend is RolloutBackendKind.sglang or bool(self.config.placement.offload)
            self._receiver = CollectiveReceiver(self._group, is_kept)
        with self.telemetry.span("receive weights"):
            failure: Exception | None = None
            for bucket in self._receiver.receive():  # to the end, since the sender waits for every receiver
                try:
                    if failure is None:
                        self.apply(bucket)
                except Exception as error:  # raised below
                    failure = error
        if failure is not None:
            raise failure
        return self.backend.policy_version

    def offload(self) -> None:
        """Free the accelerator, so that actor workers can use it. Does nothing before `load`."""
        if self._backend is not None:
            self._is_offloaded = True
            with self.telemetry.span("offload"):
                self._backend.offload()

    def onload(self) -> None:
        """Move back to the accelerator. Raises RunError naming the sender if the weights that came are damaged."""
        if self._backend is not None:
            with self.telemetry.span("onload"):
                self._backend.onload(self._arrived.verify)
            self._is_offloaded = False

    def close(self) -> None:
        """Free the policy."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        self._memory = None
        self._shared.close()
