"""What arrived at a rollout worker: checksums of buckets, and a sample that shows which weights the policy really has.

A bucket with other bytes than were sent is a fault of its sender. A policy that has not the sampled numbers, or a
version that never arrived, is a fault of the rollout worker.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from rlrun.data.message_checks import wrong_message
from rlrun.data.messages import TensorSlice, WeightBucket
from rlrun.weight_sync.buckets import checksum, unpack

_NUM_SAMPLED = 16  # numbers of a tensor, at least; fewer than twice as many


class ArrivedWeights:
    """Remembers the newest version that arrived, by some numbers of each tensor.

    Example::

        arrived = ArrivedWeights("rollout/0")
        arrived.add(bucket)                                # before it is applied; raises RunError
        arrived.require(policy_version, backend.held)      # before the first action of a version; raises RunError
    """

    def __init__(self, worker: str):
        self._worker = worker
        self._version, self._num_buckets = -1, 0
        self._indices: set[int] = set()
        self._samples: dict[str, tuple[TensorSlice, Tensor]] = {}  # by tensor
        self._verified: int | None = None

    def accept(self, version: int) -> None:
        """Take `version` as it is: its weights come from a policy folder."""
        self._verified = version

    def add(self, bucket: WeightBucket) -> None:
        """Check a bucket, and sample it. Raises RunError naming the sender."""
        if bucket.checksum is not None and checksum(bucket.payload) != bucket.checksum:
            raise wrong_message(
                "actor/0",
                f"bucket {bucket.index} of the weights of version {bucket.policy_version} arrived with other bytes "
                f"than were sent, at {self._worker}",
                "its checksum differs: the memory or the link between them changes data",
            )
        if bucket.policy_version != self._version or bucket.index in self._indices:
            self._version, self._num_buckets = bucket.policy_version, bucket.num_buckets
            self._indices, self._samples, self._verified = set(), {}, None
        self._indices.add(bucket.index)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # the array is only read
            for where, (name, tensor) in zip(bucket.slices, unpack(bucket), strict=True):
                self._samples[name] = where, sampled(tensor)

    def require(self, version: int, held: Callable[[str], Tensor | None]) -> None:
        """Raise RunError, naming this worker, unless its policy has the weights of `version`; looks once a version.

        held: returns a tensor of the policy by name; None: the backend keeps it in another form.
        """
        if version == self._verified:
            return
        if version != self._version or len(self._indices) != self._num_buckets:
            newest = f"version {self._version}" if self._version >= 0 else "none"
            raise wrong_message(
                self._worker,
                f"it acts as policy version {version}, whose weights it has not taken",
                f"the newest weights that arrived there whole are those of {newest}",
            )
        for name, (where, sample) in self._samples.items():
            found = held(name)
            if found is None or tuple(found.shape) != where.shape:
                continue
            have = sampled(found).to(sample.device, sample.dtype)
            if not torch.equal(have.view(torch.uint8), sample.view(torch.uint8)):
                raise wrong_message(
                    self._worker,
                    f"it acts as policy version {version}, but with other weights",
                    f"{name} has other numbers than arrived",
                )
        self._verified = version


def sampled(tensor: Tensor) -> Tensor:
    """Return some numbers of a tensor, evenly spaced from the first on, copied where it is."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _NUM_SAMPLED)].clone()
