"""How buckets travel from actor rank 0 to every rollout worker: one interface, and the object store.

A sender returns the buckets that its caller must carry to each rollout worker; a transport that moves them itself
returns none, and has a receiver of its own. So a worker knows neither Ray nor the number of its peers::

    carried = sender.send(buckets)      # actor rank 0; run it to the end
    for bucket in carried:              # every rollout worker: these, or what `CollectiveReceiver.receive` gives
        backend.apply(bucket)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from rlrun.data.messages import SharedBucket, WeightBucket


class WeightSender(ABC):
    """The actor's end."""

    @abstractmethod
    def send(self, buckets: Iterable[WeightBucket]) -> Iterator[WeightBucket] | Iterator[SharedBucket]:
        """Publish one policy version; yields what the caller must carry. Raises TimeoutError naming the wait."""


class CarriedSender(WeightSender):
    """Object store: buckets are return values; Ray keeps one copy per node, shared by its workers."""

    def send(self, buckets: Iterable[WeightBucket]) -> Iterator[WeightBucket]:
        yield from buckets
