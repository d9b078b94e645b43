"""Weight sync through the memory of one node, in one process and by legs: from the card to the host, and back.

Buckets have checksums, as in a run by default.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from rlrun.actor.learner import Learner
from rlrun.edges.buckets import lay_out, on_device, pack
from rlrun.edges.host_memory import SharedReceiver, SharedSender, WeightMemory
from rlrun.edges.incoming_weights import ArrivedWeights
from rlrun.edges.weights import WeightBucket
from rlrun.rollout.hf import HFBackend

T = TypeVar("T")


@dataclass(frozen=True)
class Legs:
    """Seconds of one policy version. Example: Legs(15_000_000_000, "pinned", 0.31, 0.30)."""

    num_bytes: int
    memory: str  # pinned or pageable
    to_host_s: float  # gathered, merged, cast and packed
    to_device_s: float  # into the parameters of the rollout worker

    @property
    def seconds(self) -> float:
        """Of both legs, one after the other; workers of a run overlap them."""
        return self.to_host_s + self.to_device_s

    def text(self) -> str:
        """Return one line. Example: "0.61 s: 15.0 GB by pinned memory, 48.4 GB/s to the host, 50.0 GB/s back"."""
        gigabytes = self.num_bytes / 1e9
        rates = f"{gigabytes / self.to_host_s:.1f} GB/s to the host, {gigabytes / self.to_device_s:.1f} GB/s back"
        return f"{self.seconds:.2f} s: {gigabytes:.2f} GB by {self.memory} memory, {rates}"


class NodeMemory:
    """The shared memory of a node, both ends of it in this process. `close` frees it."""

    def __init__(self, learner: Learner, device: torch.device, num_repeats: int, has_base: bool = False):
        """has_base: the rollout worker has the weights under the adapters, so that only these are sent."""
        self._learner, self._device, self._num_repeats, self._has_base = learner, device, num_repeats, has_base
        self._layout = lay_out(learner.weight_layout(has_base), learner.config.weight_sync.bucket_bytes)
        self._memory, self._receiver = WeightMemory(self._layout), SharedReceiver()
        self._arrived = ArrivedWeights("rollout/0")

    def resident(self, backend: HFBackend) -> Legs:
        """Send while both are on the card."""

        def once() -> tuple[float, float]:
            to_host_s = to_device_s = 0.0
            packed = self._buckets()
            for _ in self._layout.buckets:
                seconds, bucket = self._timed(lambda: next(packed))
                to_host_s += seconds
                to_device_s += self._timed(lambda: self._apply(bucket, backend))[0]  # noqa: B023  (called at once)
            return to_host_s, to_device_s

        return self._legs(once)

    def in_turns(self, backend: HFBackend) -> Legs:
        """Send as roles do that take turns: the rollout worker is away while the actor packs, and the other way round.

        It begins and ends with the actor on the card. The actor's own moves are not counted.
        """

        def once() -> tuple[float, float]:
            to_host_s, buckets = self._timed(lambda: list(self._buckets()))
            for bucket in buckets:
                backend.apply(bucket)
            self._learner.offload()
            to_device_s, _ = self._timed(lambda: backend.onload(self._arrived.verify))
            backend.offload()
            self._learner.onload()
            return to_host_s, to_device_s

        return self._legs(once)

    def send(self, backend: HFBackend) -> None:
        """Send once, without measuring."""
        for bucket in self._buckets():
            backend.apply(bucket)

    def close(self) -> None:
        """Free the memory."""
        self._receiver.close()
        self._memory.close()

    def _buckets(self) -> Iterator[WeightBucket]:
        tensors = self._learner.named_weights(self._has_base)
        packed = pack(tensors, self._layout, 1, is_checksummed=True, buffer=self._memory.buffer)
        return map(self._receiver.open, SharedSender(self._memory).send(packed))

    def _apply(self, bucket: WeightBucket, backend: HFBackend) -> None:
        """Verify and take a bucket as a rollout worker does."""
        here = on_device(bucket, self._device)
        self._arrived.add(here)
        backend.apply(here)

    def _legs(self, once: Callable[[], tuple[float, float]]) -> Legs:
        once()  # the kernel maps the pages at their first use
        legs = [once() for _ in range(self._num_repeats)]
        to_host_s, to_device_s = (statistics.median(seconds) for seconds in zip(*legs, strict=True))
        kind = "pinned" if self._memory.is_pinned else "pageable"
        return Legs(self._layout.num_bytes, kind, to_host_s, to_device_s)

    def _timed(self, work: Callable[[], T]) -> tuple[float, T]:
        """Return the wall seconds of a call until the device is done, and what it returns."""
        _finish(self._device)
        started = time.monotonic()
        result = work()
        _finish(self._device)
        return time.monotonic() - started, result


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
