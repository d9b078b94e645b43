"""The initial policy for the KL penalty: a second copy of this rank's shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlrun.actor.sharding import ShardedPolicy
from rlrun.policies.offloading import local


class ReferenceWeights:
    """A snapshot of the shards, put in the place of the master weights to compute its log-probabilities.

    It has the precision in which the policy computes: gathering casts to that anyway, so no result depends on it.
    """

    def __init__(self, sharded: ShardedPolicy):
        self._sharded = sharded
        sharded.reshard()
        self.shards = {
            name: parameter.detach().to(sharded.param_dtype, copy=True)
            for name, parameter in sharded.module.named_parameters()
            if parameter.requires_grad  # others never change
        }

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the reference weights inside this context; drops gathered copies before and after.

        The master weights are copied meanwhile, when no gradients are held, which are as large.
        """
        self._sharded.reshard()
        parameters = dict(self._sharded.module.named_parameters())
        masters = {name: local(parameters[name].detach()).clone() for name in self.shards}
        try:
            for name, shard in self.shards.items():
                local(parameters[name].detach()).copy_(local(shard))
            with torch.no_grad():
                yield
        finally:
            self._sharded.reshard()
            for name, master in masters.items():
                local(parameters[name].detach()).copy_(master)
