"""The policy as a folder, gathered tensor by tensor from the shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.actor.sharding import DTYPES

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner


def export_policy(learner: Learner, folder: Path) -> None:
    """Write weights (in the precision of training) and all that belongs to them to `folder`; a collective.

    All ranks gather; rank 0 keeps the tensors in host memory and writes. Raises OSError on rank 0
    where it cannot.
    """
    sharded, dtype = learner.sharded, DTYPES[learner.config.actor.param_precision]
    state_dict = {}
    for name, tensor in sharded.full_tensors(sharded.shards().items(), dtype):
        learner.telemetry.count("gathered_tensors")
        if learner.ranks.rank == 0:
            state_dict[name] = tensor.cpu().clone()
    if learner.ranks.rank == 0:
        learner.policy.save(folder, state_dict)
