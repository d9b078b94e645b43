"""Collects the buckets of one policy version and checks them before they are applied."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Set

import numpy as np

from rlrun.data.messages import WeightBucket

_NOTHING = np.zeros(0, np.uint8)


class WeightStage:
    """Holds the buckets of one version until all have arrived.

    Example::

        stage = WeightStage({name: tuple(p.shape) for name, p in model.named_parameters()})
        if stage.add(bucket):                     # True with the last bucket of a version
            for whole in stage.buckets(): ...
            stage.clear()

    optional: names of `expected` that a version may leave out (weights that are not used).
    After a ValueError the stage is empty, so the version in use stays and the next one can be staged.
    """

    def __init__(self, expected: Mapping[str, tuple[int, ...]], optional: Set[str] = frozenset()):
        self._expected = dict(expected)
        self._optional = optional
        self._buckets: dict[int, WeightBucket] = {}

    @property
    def policy_version(self) -> int | None:
        """The version being collected, or None."""
        return next(iter(self._buckets.values())).policy_version if self._buckets else None

    @property
    def is_complete(self) -> bool:
        return bool(self._buckets) and len(self._buckets) == next(iter(self._buckets.values())).num_buckets

    def add(self, bucket: WeightBucket, is_kept: bool = True) -> bool:
        """Stage a bucket. Returns True if it completes its version.

        is_kept: hold its payload too; else only what names it, for a caller that applies each bucket at once.
        Raises ValueError naming the buckets of another version, a repeated bucket, and (with the last bucket) every
        unknown, missing, repeated or mis-shaped tensor.
        """
        faults = self._bucket_faults(bucket)
        if not faults:
            self._buckets[bucket.index] = bucket if is_kept else dataclasses.replace(bucket, payload=_NOTHING)
            faults = self._tensor_faults() if self.is_complete else []
        if faults:
            self.clear()
            raise ValueError(f"weights of policy version {bucket.policy_version} refused: " + "; ".join(faults))
        return self.is_complete

    def buckets(self) -> Iterator[WeightBucket]:
        """Yield the buckets of the complete version, in order."""
        if not self.is_complete:
            raise RuntimeError("the staged policy version is not complete; add its remaining buckets first")
        for index in sorted(self._buckets):
            yield self._buckets[index]

    def clear(self) -> None:
        """Drop the staged buckets and their memory."""
        self._buckets = {}

    def _bucket_faults(self, bucket: WeightBucket) -> list[str]:
        faults = []
        if self._buckets and bucket.policy_version != self.policy_version:
            have = len(self._buckets)
            faults.append(f"it arrived while version {self.policy_version} was incomplete ({have} buckets staged)")
        elif bucket.index in self._buckets:
            faults.append(f"bucket {bucket.index} of {bucket.num_buckets} arrived twice")
        elif self._buckets and bucket.num_buckets != next(iter(self._buckets.values())).num_buckets:
            faults.append(f"bucket {bucket.index} counts {bucket.num_buckets} buckets, earlier ones another number")
        if not 0 <= bucket.index < bucket.num_buckets:
            faults.append(f"bucket index {bucket.index} is outside 0..{bucket.num_buckets - 1}")
        return faults

    def _tensor_faults(self) -> list[str]:
        sent = [where for bucket in self._buckets.values() for where in bucket.slices]
        times = Counter(where.name for where in sent)
        faults = [f"unknown tensor {name!r}" for name in times if name not in self._expected]
        required = [name for name in self._expected if name not in self._optional]
        faults += [f"missing tensor {name!r}" for name in required if name not in times]
        faults += [f"repeated tensor {name!r}" for name, count in times.items() if count > 1]
        for where in sent:
            shape = self._expected.get(where.name, where.shape)
            if tuple(shape) != where.shape:
                faults.append(f"tensor {where.name!r} has shape {where.shape}, the policy holds {tuple(shape)}")
        return faults
