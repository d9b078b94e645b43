"""The initial policy for the KL penalty: a second copy of this rank's shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlrun.actor.sharding import ShardedPolicy
from rlrun.policies.offloading import local


class ReferenceWeights:
    """A snapshot of the shards, in the type of the master weights; swapped in to compute its log-probabilities."""

    def __init__(self, sharded: ShardedPolicy):
        self._sharded = sharded
        sharded.reshard()
        parameters = sharded.module.named_parameters()
        self.shards = {name: p.detach().clone() for name, p in parameters if p.requires_grad}  # others never change

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the reference weights inside this context; drops gathered copies before and after."""
        self._exchange()
        try:
            with torch.no_grad():
                yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        self._sharded.reshard()
        parameters = dict(self._sharded.module.named_parameters())
        for name, kept_shard in self.shards.items():
            live, reference = local(parameters[name]), local(kept_shard)
            kept = live.clone()
            live.copy_(reference)
            reference.copy_(kept)
