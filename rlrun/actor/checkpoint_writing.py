"""Writing of a checkpoint by all ranks together: atomic, and agreed upon after every stage."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from rlrun.actor.process_group import Ranks
from rlrun.config import provenance
from rlrun.config.provenance import POLICY_CONFIG
from rlrun.config.schema import RunConfig
from rlrun.data import checkpoint_folder, checksums
from rlrun.data.checkpoint_folder import FORMAT
from rlrun.data.checksums import FileSum, Sums
from rlrun.policies.policy import torch_dtype
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.storage_error import probe_write, storage_failure

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner
    from rlrun.policies.policy import Policy


# exceptions of a full disk, a lost mount or a damaged file, depending on the layer that meets it first
STORAGE_ERRORS = (OSError, RuntimeError, ValueError, EOFError, CheckpointException)
_RANK = re.compile(r"(?:shards/__|rng_rank)(\d+)")  # in the names of files written per rank


class BackgroundSave:
    """Example: saving = BackgroundSave(writing.complete); …; saving.wait(600.0)."""

    def __init__(self, write: Callable[[], None]):
        self._outcome: Future[None] = Future()
        # a daemon, since a disk that hangs must not keep the process from its end
        threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=True).start()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)

    @property
    def is_done(self) -> bool:
        """Return whether the write has ended, well or not."""
        return self._outcome.done()

    def wait(self, deadline_s: float) -> None:
        """Wait for the end. Raises the exception of the write, and TimeoutError at the deadline."""
        self._outcome.result(deadline_s)


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
    sharded = learner.sharded
    dtype = torch_dtype(learner.config.actor.param_precision)
    for named in sharded.full_tensors(_together(learner), dtype):
        learner.telemetry.count("gathered_tensors")
        yield named


def _together(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """Yield the shards, each once every rank has come to it, so that a slow disk of rank 0 ends no gathering."""
    for named in learner.sharded.policy_shards():
        learner.ranks.barrier()
        yield named


@dataclass(frozen=True)
class Snapshot:
    """The training state of this rank. Example: write(snapshot(learner, {"step": 3}), folder, learner.ranks)."""

    tensors: dict[str, Tensor]  # by a flat name; shards, and this rank's share of the tensors that all ranks hold
    num_bytes: int  # of the checkpoint, over all ranks
    rank_state: dict[str, Any]  # of random generators and of the algorithm
    state: dict[str, Any]  # JSON: counters, and the driver's own state
    export: PolicyExport

    def in_host_memory(self) -> Snapshot:
        """Copy everything that later updates change; the policy is gathered for it. All ranks call it."""
        return replace(
            self,
            tensors={name: _copied(tensor) for name, tensor in self.tensors.items()},
            rank_state=copy.deepcopy(self.rank_state),
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
    rank_state = {"algorithm": dict(learner.algorithm.state_dict()), **_generators()}
    tensors = _tensors(learner)
    return Snapshot(_own(tensors, learner.ranks), _num_bytes(tensors), rank_state, state, policy_export(learner))


def _own(tensors: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Return the shards, and every world_size-th of the tensors that all ranks hold, so that each is copied once."""
    whole = [name for name, tensor in tensors.items() if not isinstance(tensor, DTensor)]
    others = {name for place, name in enumerate(whole) if place % ranks.world_size != ranks.rank}
    return {name: tensor for name, tensor in tensors.items() if name not in others}


def _num_bytes(tensors: dict[str, Tensor]) -> int:
    """Return the size over all ranks: every tensor once, and parameters again in `policy/`."""
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    return sum(2 * size if name.startswith("model/") else size for name, size in sizes.items())


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
        tensors |= {f"reference/{name}": shard for name, shard in learner.reference.tensors.items()}
    tensors |= {f"learned/{name}": shard for name, shard in (learner.learned or {}).items()}
    return tensors


def _generators() -> dict[str, Any]:
    state = np.random.get_state(legacy=False)  # noqa: NPY002  libraries still use this generator
    assert isinstance(state, dict)
    keys = state["state"]["key"]
    position = state["state"]["pos"]
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": (torch.from_numpy(keys.astype(np.int64)), position, state["has_gauss"], state["gauss"]),
        "python": random.getstate(),
    }


class CheckpointWriting:
    """One checkpoint on its way to the disk.

    Example: CheckpointWriting(snapshot(learner, {"step": 3}), folder, learner.ranks).complete()
    """

    def __init__(self, snapshot: Snapshot, folder: Path, ranks: Ranks, progress: Callable[[], None] = lambda: None):
        """ranks: no other thread may use their group until `complete` returns.

        progress: called after each checksummed piece.
        """
        self._snapshot = snapshot
        self._folder = folder.absolute()
        self._ranks = ranks
        self._progress = progress
        self._fresh = self._folder.parent / f".writing-{folder.name}"

    def complete(self) -> None:
        """Write `folder`; all ranks call it. An existing checkpoint there is replaced.

        Raises RunError on every rank if one of them cannot write; partial files are removed, and earlier
        checkpoints stay complete.
        """
        rank_sums: dict[str, FileSum] = {}
        with self._agreed():
            self._make_room()
        with self._agreed():
            self._see()
        with self._agreed():
            self._write()
        with self._agreed():
            self._snapshot.export.write(self._fresh / "policy", self._progress)
        with self._agreed():
            rank_sums = self._own_sums()
        sums = {name: file for part in self._ranks.gather(rank_sums) for name, file in part.items()}
        with self._agreed():
            self._publish(sums)

    @contextmanager
    def _agreed(self) -> Iterator[None]:
        """Run one stage of writing inside; if it fails on any rank, clean up and raise on all of them."""
        failure: BaseException | None = None
        try:
            yield
        except (*STORAGE_ERRORS, RunError) as error:
            failure = error
        faults = [
            fault for fault in self._ranks.gather(None if failure is None else self._write_failure(failure)) if fault
        ]
        if not faults:
            return
        if self._ranks.rank == 0:
            shutil.rmtree(self._fresh, ignore_errors=True)
        raise faults[0] from failure

    def _write_failure(self, failure: BaseException) -> RunError:
        """Return the failure that ends the save. Libraries may hide why a write failed, so the write is tried again."""
        if isinstance(failure, RunError):
            return failure
        root = self._fresh.parent
        num_bytes = self._snapshot.num_bytes
        rank, cause = _at_fault(failure, self._ranks.rank)
        worker = f"actor/{rank}"
        subject = f"{worker}, which saves a checkpoint of {num_bytes / 1e6:.1f} MB,"
        places = [str(root)]
        explained = storage_failure(cause, subject, places, worker)
        if explained is None and (refused := probe_write(root, num_bytes)) is not None:
            explained = storage_failure(refused, subject, places, worker)
        return explained or RunError(
            f"The checkpoint could not be written to {root}: {reason_of(failure)}",
            cause=f"{worker} failed at it, and the disk takes files: it is not to blame",
            remedy=f"Read the end of logs/{worker.replace('/', '-')}.log; then resume the run: earlier checkpoints are "
            "whole.",
            exit_status=ExitStatus.unexpected,
            worker=worker,
        )

    def _make_room(self) -> None:
        if self._ranks.rank != 0:
            return
        checkpoint_folder.require_format(self._folder, is_newer_only=True)
        shutil.rmtree(self._fresh, ignore_errors=True)  # left by an earlier process of this run
        self._fresh.parent.mkdir(exist_ok=True)  # not its parents: a run folder that is gone must not come back
        self._fresh.mkdir()
        if (refused := probe_write(self._fresh, self._snapshot.num_bytes)) is not None:
            raise refused

    def _see(self) -> None:
        if not self._fresh.is_dir():
            raise RunError(
                f"The checkpoint could not be written: {self._folder.parent} is not the same folder on every node.",
                key="output_dir",
                value=str(self._folder.parent.parent),
                cause=f"actor/{self._ranks.rank} does not see the files of actor/0 there.",
                remedy="Put output_dir on a file system that all nodes share.",
                exit_status=ExitStatus.storage,
            )

    def _write(self) -> None:
        dcp.save(self._snapshot.tensors, checkpoint_id=self._fresh / "shards", process_group=self._ranks.group)
        torch.save(self._snapshot.rank_state, self._fresh / f"rng_rank{self._ranks.rank}.pt")
        if self._ranks.rank == 0:
            state = {"format": FORMAT, **self._snapshot.state}
            (self._fresh / "state.json").write_text(json.dumps(state, indent=1))

    def _own_sums(self) -> dict[str, FileSum]:
        """Flush the files that this rank wrote and return their checksums; those of the policy are known."""
        rank = self._ranks.rank
        fresh = self._fresh
        names = [name for name in checksums.file_names(fresh) if _owner(name) == rank]
        known = {}
        if rank == 0:
            known = {f"policy/{name}": file for name, file in checksums.read(fresh / "policy").items()}
        return known | checksums.compute(fresh, [name for name in names if name not in known], self._progress)

    def _publish(self, sums: Sums) -> None:
        """Mark and rename the checkpoint after all ranks have flushed their files."""
        if self._ranks.rank != 0:
            return
        fresh = self._fresh
        folder = self._folder
        checkpoint_folder.mark_complete(fresh, checksums.write(fresh, sums))
        if folder.exists():  # the same step is saved twice, for example if a signal follows a save
            replaced = folder.parent / f".replaced-{folder.name}"
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(folder, replaced)
            checksums.rename_durably(fresh, folder)
            shutil.rmtree(replaced)
        else:
            checksums.rename_durably(fresh, folder)


def reason_of(failure: BaseException | None) -> str | None:
    """Return the first line of a failure, with its class; None without one."""
    if failure is None:
        return None
    _, failure = _at_fault(failure, 0)
    return f"{type(failure).__name__}: {failure}".splitlines()[0]


def _at_fault(failure: BaseException, own: int) -> tuple[int, BaseException]:
    """Return the first rank that failed and its error, which DCP's own exception has on every rank. own: this rank."""
    if isinstance(failure, CheckpointException):
        return next(((rank, error) for rank, (error, _) in failure.failures.items()), (own, failure))
    return own, failure


def _owner(name: str) -> int:
    match = _RANK.match(name)
    return int(match[1]) if match else 0
