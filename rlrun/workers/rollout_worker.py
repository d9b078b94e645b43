"""The rollout worker: runs the policy to choose actions, and takes new weights between chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from rlrun.config.schema import RolloutBackendKind, RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.incoming_weights import IncomingWeights
from rlrun.edges.observations import Observation, check_observation
from rlrun.edges.spaces import PolicySpaces, Spaces
from rlrun.edges.weights import DeviceHandles, SentBucket
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
        self.incoming = IncomingWeights(config, rank, telemetry)
        self._is_offloaded = False
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
                self.incoming.arrived.accept(0)
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
            check_observation(observation, self.backend.num_proprio, self.config)
        self.incoming.arrived.require(self.policy_version, self.backend.held)
        self.telemetry.step = self.policy_version + 1
        began = time.monotonic()
        with self.telemetry.span("act"), self._profile():
            chunks = self.backend.act(observations)
        self.telemetry.count("acted_us", round(1e6 * (time.monotonic() - began)))
        self.telemetry.count("answers", 1)
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
        """See `IncomingWeights.share_device_memory`."""
        return self.incoming.share_device_memory(bucket_bytes)

    def join_weight_group(self, address: str, port: int, planned: str) -> None:
        """See `IncomingWeights.join_group`."""
        self.incoming.join_group(address, port, planned)

    def apply(self, sent: SentBucket) -> int:
        """Take one bucket of weights. Returns the version in use afterwards. Raises RunError naming the sender."""
        with self.incoming.opened(sent, self._is_offloaded) as bucket, self.telemetry.span("apply weights"):
            self.backend.apply(bucket)
        return self.backend.policy_version

    def discard_weights(self) -> None:
        """Drop the version that was being sent when a worker was lost; it is sent again."""
        self.backend.discard_staged()

    def receive(self) -> int:
        """Receive the policy version that is being broadcast, with the collective transport. Returns the version."""
        with self.telemetry.span("receive weights"):
            failure: Exception | None = None
            for bucket in self.incoming.received():  # to the end, since the sender waits for every receiver
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
                self._backend.onload(self.incoming.arrived.verify)
            self._is_offloaded = False

    def close(self) -> None:
        """Free the policy."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        self.incoming.close()
