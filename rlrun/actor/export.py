"""The policy as a folder, gathered tensor by tensor from the shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from rlrun.actor.sharding import DTYPES
from rlrun.data import checksums

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner


def export_policy(learner: Learner, folder: Path) -> None:
    """Write weights (in the precision of training) and all that belongs to them to `folder`, with their checksums.

    A collective: all ranks gather; rank 0 holds one file's worth in host memory and writes. Raises OSError on rank 0
    where it cannot; the others then end with it, since it gathers to the end all the same.
    """
    gathered = _gathered(learner)
    try:
        if learner.ranks.rank == 0:
            learner.policy.save(folder, gathered)
            checksums.write(folder, progress=lambda: learner.telemetry.count("checksummed_pieces"))
    finally:
        for _ in gathered:  # also what could not be written any more
            pass


def _gathered(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    sharded, dtype = learner.sharded, DTYPES[learner.config.actor.param_precision]
    for named in sharded.full_tensors(sharded.policy_shards(), dtype):
        learner.telemetry.count("gathered_tensors")
        yield named
