"""How buckets travel from actor rank 0 to every rollout worker: one interface, and the object store.

A sender returns the buckets that its caller must carry to each receiver; a transport that moves them
itself returns none. So a worker knows neither Ray nor the number of its peers, and the same three
lines serve every transport::

    carried = sender.send(buckets)                 # actor rank 0; run it to the end
    for bucket in receiver.receive(carried):       # every rollout worker, at the same time
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


class WeightReceiver(ABC):
    """A rollout worker's end."""

    @abstractmethod
    def receive(self, carried: Iterable[WeightBucket]) -> Iterator[WeightBucket]:
        """The buckets of one policy version, in order; `carried` is what the sender yielded.

        Raises TimeoutError naming the wait.
        """


class CarriedSender(WeightSender):
    """Object store: buckets are return values; Ray keeps one copy per node, shared by its workers."""

    def send(self, buckets: Iterable[WeightBucket]) -> Iterator[WeightBucket]:
        yield from buckets


class CarriedReceiver(WeightReceiver):
    """Object store: takes what it is handed."""

    def receive(self, carried: Iterable[WeightBucket]) -> Iterator[WeightBucket]:
        yield from carried
