"""What a checkpoint holds of one rank: the training state at one step, in place or copied to host memory."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.export import PolicyExport, policy_export

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner


@dataclass(frozen=True)
class Snapshot:
    """The training state of this rank. Example: write(snapshot(learner, {"step": 3}), folder, learner.ranks)."""

    tensors: dict[str, Tensor]  # by a flat name; shards, not whole tensors
    remembered: dict[str, Any]  # states of random generators, and what the algorithm remembers
    state: dict[str, Any]  # JSON: counters, and the driver's own state
    export: PolicyExport

    @property
    def num_bytes(self) -> int:
        """Return the size of the checkpoint over all ranks: every tensor once, and parameters again in `policy/`."""
        sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in self.tensors.items()}
        return sum(2 * size if name.startswith("model/") else size for name, size in sizes.items())

    def in_host_memory(self) -> Snapshot:
        """Copy everything that later updates change; the policy is gathered for it. All ranks call it."""
        return replace(
            self,
            tensors={name: _copied(tensor) for name, tensor in self.tensors.items()},
            remembered=copy.deepcopy(self.remembered),
            export=replace(self.export, tensors=_kept(self.export)),
        )


def snapshot(learner: Learner, driver_state: dict) -> Snapshot:
    """Refer to the state of a learner that is on its device; valid until its next update."""
    learner.sharded.offloader.require_device("a checkpoint")
    state = {
        "world_size": learner.ranks.world_size,
        "num_updates": learner.num_updates,
        "num_optimizer_steps": learner.optimizer.num_steps,
        "driver": driver_state,
    }
    remembered = {"algorithm": dict(learner.algorithm.state_dict()), **_generators()}
    return Snapshot(_tensors(learner), remembered, state, policy_export(learner))


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _kept(export: PolicyExport) -> Iterable[tuple[str, Tensor]]:
    """Gather the policy on all ranks. Return its tensors in host memory on the rank that writes them."""
    kept = []
    for name, tensor in export.tensors:
        if export.is_writer:
            kept.append((name, _copied(tensor)))
    return kept


def _tensors(learner: Learner) -> dict[str, Tensor]:
    tensors = {f"model/{name}": tensor for name, tensor in learner.sharded.shards().items()}
    for name, parameter in learner.sharded.module.named_parameters():
        for key, value in learner.optimizer.inner.moments(parameter).items():
            tensors[f"optimizer/{name}/{key}"] = value
    if learner.reference is not None:
        tensors |= {f"reference/{name}": shard for name, shard in learner.reference.shards.items()}
    return tensors


def _generators() -> dict[str, Any]:
    state = np.random.get_state(legacy=False)  # noqa: NPY002  libraries still use this generator
    assert isinstance(state, dict)
    keys, position = state["state"]["key"], state["state"]["pos"]
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": (torch.from_numpy(keys.astype(np.int64)), position, state["has_gauss"], state["gauss"]),
        "python": random.getstate(),
    }
