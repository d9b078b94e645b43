"""The sender's interface of weight transports, and the transport through the object store.

A sender yields the buckets that its caller must carry to each rollout worker. A transport that moves them itself
yields none, and has its own receiver. Thus a worker depends neither on Ray nor on the number of its peers::

    carried = sender.send(buckets)      # actor rank 0; iterate to the end
    for bucket in carried:              # every rollout worker: these, or those of `CollectiveReceiver.receive`
        backend.apply(bucket)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from rlrun.data.messages import SharedBucket, WeightBucket


class WeightSender(ABC):
    """The end of a transport at actor rank 0."""

    @abstractmethod
    def send(self, buckets: Iterable[WeightBucket]) -> Iterator[WeightBucket] | Iterator[SharedBucket]:
        """Send one policy version. Yields buckets for the caller to carry. Raises TimeoutError naming the wait."""


class CarriedSender(WeightSender):
    """Object store transport: buckets are return values, of which Ray keeps one copy per node for all its workers."""

    def send(self, buckets: Iterable[WeightBucket]) -> Iterator[WeightBucket]:
        yield from buckets
