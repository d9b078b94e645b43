"""Writing of a checkpoint by all ranks together: atomic, and agreed upon after every stage."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from rlrun.actor.checkpoint_snapshot import Snapshot
from rlrun.actor.process_group import Ranks
from rlrun.data import checkpoint_folder, checksums
from rlrun.data.checkpoint_folder import FORMAT
from rlrun.data.checksums import FileSum, Sums
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

# exceptions of a full disk, a lost mount or a damaged file, depending on the layer that meets it first
STORAGE_ERRORS = (OSError, RuntimeError, ValueError, EOFError, CheckpointException)
_RANK = re.compile(r"(?:shards/__|rng_rank)(\d+)")  # in the names of files written per rank


class CheckpointWriting:
    """One checkpoint on its way to the disk.

    Example: CheckpointWriting(snapshot(learner, {"step": 3}), folder, learner.ranks).complete()
    """

    def __init__(self, snapshot: Snapshot, folder: Path, ranks: Ranks, progress: Callable[[], None] = lambda: None):
        """ranks: no other thread may use their group meanwhile. progress: called after each checksummed piece."""
        self._snapshot, self._folder, self._ranks, self._progress = snapshot, folder.absolute(), ranks, progress
        self._fresh = self._folder.parent / f".writing-{folder.name}"

    def complete(self) -> None:
        """Write `folder`; all ranks call it. An existing checkpoint there is replaced.

        Raises RunError on every rank if one of them cannot write; partial files are removed, and earlier
        checkpoints stay complete.
        """
        own: dict[str, FileSum] = {}
        self._agreed(self._make_room)
        self._agreed(self._see)
        self._agreed(self._write)
        self._agreed(lambda: self._snapshot.export.write(self._fresh / "policy", self._progress))
        self._agreed(lambda: own.update(self._own_sums()))
        sums = {name: file for part in self._ranks.gather(own) for name, file in part.items()}
        self._agreed(lambda: self._publish(sums))

    def _agreed(self, write: Callable[[], None]) -> None:
        """Run one stage of writing; if it fails on any rank, clean up and raise on all of them."""
        failure: BaseException | None = None
        try:
            write()
        except STORAGE_ERRORS as error:
            failure = error
        reasons = [reason for reason in self._ranks.gather(reason_of(failure)) if reason]
        if not reasons:
            return
        root, num_bytes = self._fresh.parent, self._snapshot.num_bytes
        free = shutil.disk_usage(root).free if root.is_dir() else 0
        if self._ranks.rank == 0:
            shutil.rmtree(self._fresh, ignore_errors=True)
        raise RunError(
            f"The checkpoint could not be written to {root}.",
            cause=f"{reasons[0]} (it takes about {num_bytes / 1e6:.1f} MB; {free / 1e6:.1f} MB are free there)",
            remedy="Free space there, or make it writable; lower checkpoint.keep_last, or point output_dir to another "
            "disk; then resume the run: earlier checkpoints are whole.",
            exit_status=ExitStatus.storage,
            row="checkpoint-ranks-disagree",
        ) from failure

    def _make_room(self) -> None:
        if self._ranks.rank != 0:
            return
        shutil.rmtree(self._fresh, ignore_errors=True)  # left by an earlier process of this run
        self._fresh.mkdir(parents=True)
        free, num_bytes = shutil.disk_usage(self._fresh).free, self._snapshot.num_bytes
        if free < num_bytes:
            raise OSError(f"No space left on device: {num_bytes} bytes are needed, {free} are free")

    def _see(self) -> None:
        if not self._fresh.is_dir():
            root = self._folder.parent
            raise OSError(f"{root} is not the same folder on every node; put output_dir on a shared file system")

    def _write(self) -> None:
        dcp.save(self._snapshot.tensors, checkpoint_id=self._fresh / "shards", process_group=self._ranks.group)
        torch.save(self._snapshot.remembered, self._fresh / f"rng_rank{self._ranks.rank}.pt")
        if self._ranks.rank == 0:
            state = {"format": FORMAT, **self._snapshot.state}
            (self._fresh / "state.json").write_text(json.dumps(state, indent=1))

    def _own_sums(self) -> dict[str, FileSum]:
        """Flush the files that this rank wrote and return their checksums; those of the policy are known."""
        rank, fresh = self._ranks.rank, self._fresh
        names = [name for name in checksums.file_names(fresh) if _owner(name) == rank]
        known = {}
        if rank == 0:
            known = {f"policy/{name}": file for name, file in checksums.read(fresh / "policy").items()}
        return known | checksums.measured(fresh, [name for name in names if name not in known], self._progress)

    def _publish(self, sums: Sums) -> None:
        """Mark and rename the checkpoint after all ranks have flushed their files."""
        if self._ranks.rank != 0:
            return
        fresh, folder = self._fresh, self._folder
        checkpoint_folder.mark(fresh, checksums.write(fresh, sums))
        if folder.exists():  # the same step is saved twice, for example if a signal follows a save
            replaced = folder.parent / f".replaced-{folder.name}"
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(folder, replaced)
            checksums.put_in_place(fresh, folder)
            shutil.rmtree(replaced)
        else:
            checksums.put_in_place(fresh, folder)


def reason_of(failure: BaseException | None) -> str | None:
    """Return the first line of a failure, with its class; None without one."""
    if isinstance(failure, CheckpointException):  # contains the ranks' errors
        failure = next((error for error, _ in failure.failures.values()), failure)
    return None if failure is None else f"{type(failure).__name__}: {failure}".splitlines()[0]


def _owner(name: str) -> int:
    match = _RANK.match(name)
    return int(match[1]) if match else 0
