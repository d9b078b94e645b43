"""Export of the policy as a folder, gathered from the shards tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from rlrun.actor.sharding import DTYPES
from rlrun.config import provenance
from rlrun.config.provenance import POLICY_CONFIG
from rlrun.config.schema import RunConfig
from rlrun.data import checksums

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner
    from rlrun.policies.policy import Policy


@dataclass(frozen=True)
class PolicyExport:
    """A policy folder to be written: whole tensors in training precision, and the configurations of policy and run."""

    policy: Policy  # its configuration; the tensors are those below
    config: RunConfig
    tensors: Iterable[tuple[str, Tensor]]  # gathered one by one as they are taken, by all ranks together, or a list
    is_writer: bool  # rank 0

    def write(self, folder: Path, progress: Callable[[], None] = lambda: None) -> None:
        """Write `folder` on rank 0, which holds the tensors of one file at a time, with checksums; all ranks call it.

        Raises OSError on rank 0 if writing fails; it still takes all tensors, so that the other ranks do not wait.
        progress: called after each checksummed piece.
        """
        taken = iter(self.tensors)
        try:
            if self.is_writer:
                self.policy.save(folder, taken)
                provenance.write_config(self.config, folder / POLICY_CONFIG)
                checksums.write(folder, progress=progress)
        finally:
            for _ in taken:
                pass


def policy_export(learner: Learner) -> PolicyExport:
    """Return the export of the learner's present weights, which are gathered when they are taken."""
    return PolicyExport(learner.policy, learner.config, _gathered(learner), learner.ranks.rank == 0)


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
