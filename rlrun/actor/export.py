"""Export of the policy as a folder, gathered from the shards tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from rlrun.actor.sharding import DTYPES
from rlrun.config.provenance import config_yaml
from rlrun.config.recorded import POLICY_CONFIG
from rlrun.data import checksums

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner


def export_policy(learner: Learner, folder: Path) -> None:
    """Write weights (in training precision), the configurations of policy and run, and checksums to `folder`.

    All ranks call it and gather; rank 0 holds the tensors of one file in host memory and writes. Raises OSError on
    rank 0 if writing fails; it still gathers to the end, so that the other ranks do not wait.
    """
    gathered = _gathered(learner)
    try:
        if learner.ranks.rank == 0:
            learner.policy.save(folder, gathered)
            (folder / POLICY_CONFIG).write_text(config_yaml(learner.config))
            checksums.write(folder, progress=lambda: learner.telemetry.count("checksummed_pieces"))
    finally:
        for _ in gathered:  # finishes the collective even after a failed write
            pass


def _gathered(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    sharded, dtype = learner.sharded, DTYPES[learner.config.actor.param_precision]
    for named in sharded.full_tensors(_together(learner), dtype):
        learner.telemetry.count("gathered_tensors")
        yield named


def _together(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """Yield the shards, each once every rank has come to it, so that a slow disk of rank 0 ends no gathering."""
    for named in learner.sharded.policy_shards():
        learner.ranks.meet()
        yield named
