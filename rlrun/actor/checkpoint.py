"""Checkpoints of the actor: written atomically, readable by any number of ranks.

A checkpoint folder holds `shards/` (torch DCP: parameters, optimizer state, reference weights), `policy/` (a Hugging
Face folder), `rng_rank<r>.pt` (random numbers, and what the algorithm remembers), `state.json` (counters and the
driver's own state), `checksums.json` of all of these and, last, the marker. The folder has a temporary name until all
its files are flushed to the disk, and is then renamed: even a power cut leaves no marker beside incomplete files.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from rlrun.actor.export import export_policy
from rlrun.data import checkpoint_folder, checksums
from rlrun.data.checkpoint_folder import COMPLETE, FORMAT, is_complete
from rlrun.data.checksums import FileSum, Sums
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner

__all__ = ["restore", "save"]

# exceptions of a full disk, a lost mount or a damaged file, depending on the layer that meets it first
STORAGE_ERRORS = (OSError, RuntimeError, ValueError, EOFError, CheckpointException)
# further exceptions of damaged bytes whose checksums were not compared
READING_ERRORS = (*STORAGE_ERRORS, UnpicklingError, LookupError, TypeError, AttributeError, ImportError)
_RANK = re.compile(r"(?:shards/__|rng_rank)(\d+)")  # in the names of files written per rank
_COUNTERS = ("world_size", "num_updates", "num_optimizer_steps")


def save(learner: Learner, folder: Path, driver_state: dict) -> None:
    """Write a checkpoint to `folder`; all ranks call it.

    `driver_state` is JSON that `restore` returns. An existing checkpoint there is replaced. Raises
    RunError on every rank if one of them cannot write; partial files are removed, and earlier
    checkpoints stay complete.
    """
    learner.sharded.offloader.require_device("a checkpoint")
    folder = folder.absolute()
    fresh = folder.parent / f".writing-{folder.name}"
    tensors = _tensors(learner)
    num_bytes = _num_bytes(learner, tensors)
    _agreed(learner, fresh, num_bytes, lambda: _make_room(learner, fresh, num_bytes))
    _agreed(learner, fresh, num_bytes, lambda: _see(fresh, folder))
    _agreed(learner, fresh, num_bytes, lambda: _write(learner, fresh, tensors, driver_state))
    _agreed(learner, fresh, num_bytes, lambda: export_policy(learner, fresh / "policy"))
    own: dict[str, FileSum] = {}
    _agreed(learner, fresh, num_bytes, lambda: own.update(_own_sums(learner, fresh)))
    sums = {name: file for part in learner.ranks.gather(own) for name, file in part.items()}
    _agreed(learner, fresh, num_bytes, lambda: _publish(learner, fresh, folder, sums))


def restore(learner: Learner, folder: Path) -> dict:
    """Read `folder`, written by any number of ranks, into the learner. Returns the driver's state.

    All ranks call it. `checkpoint_search.newest_whole` compares checksums before. Raises RunError if the folder is
    missing, incomplete, of another model, or too damaged to read.
    """
    learner.sharded.offloader.require_device("a restore")
    state = _read_state(folder)
    reader = dcp.FileSystemReader(folder / "shards")
    failure: BaseException | None = None
    remembered: dict[str, Tensor] = {}
    try:
        saved = reader.read_metadata().state_dict_metadata
        tensors = _tensors_like(learner, saved)
        _check_shapes(folder, tensors, saved)
        dcp.load(tensors, storage_reader=reader)
        remembered = _read_rng(learner, folder, state)
    except READING_ERRORS as error:
        failure = error
    reasons = [reason for reason in learner.ranks.gather(_reason(failure)) if reason]
    if reasons:
        raise _damaged(folder, reasons[0]) from failure
    _take(learner, tensors)
    learner.algorithm.load_state_dict(remembered)
    learner.num_updates = state["num_updates"]
    learner.optimizer.num_steps = state["num_optimizer_steps"]
    return state["driver"]


# --- writing ----------------------------------------------------------------------------------


def _agreed(learner: Learner, fresh: Path, num_bytes: int, write: Callable[[], None]) -> None:
    """Run one stage of writing; if it fails on any rank, clean up and raise on all of them."""
    failure: BaseException | None = None
    try:
        write()
    except STORAGE_ERRORS as error:
        failure = error
    reasons = [reason for reason in learner.ranks.gather(_reason(failure)) if reason]
    if not reasons:
        return
    free = _free_bytes(fresh.parent)
    if learner.ranks.rank == 0:
        shutil.rmtree(fresh, ignore_errors=True)
    raise RunError(
        f"The checkpoint could not be written to {fresh.parent}.",
        cause=f"{reasons[0]} (it takes about {num_bytes / 1e6:.1f} MB; {free / 1e6:.1f} MB are free there)",
        remedy="Free space there, or make it writable; lower checkpoint.keep_last, or point output_dir to another "
        "disk; then resume the run: earlier checkpoints are whole.",
        exit_status=ExitStatus.storage,
        row="checkpoint-ranks-disagree",
    ) from failure


def _reason(failure: BaseException | None) -> str | None:
    if isinstance(failure, CheckpointException):  # contains the ranks' errors
        failure = next((error for error, _ in failure.failures.values()), failure)
    return None if failure is None else f"{type(failure).__name__}: {failure}".splitlines()[0]


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free if folder.is_dir() else 0


def _make_room(learner: Learner, fresh: Path, num_bytes: int) -> None:
    if learner.ranks.rank != 0:
        return
    shutil.rmtree(fresh, ignore_errors=True)  # left by an earlier process of this run
    fresh.mkdir(parents=True)
    free = _free_bytes(fresh)
    if free < num_bytes:
        raise OSError(f"No space left on device: {num_bytes} bytes are needed, {free} are free")


def _see(fresh: Path, folder: Path) -> None:
    if not fresh.is_dir():
        raise OSError(f"{folder.parent} is not the same folder on every node; put output_dir on a shared file system")


def _write(learner: Learner, fresh: Path, tensors: dict[str, Tensor], driver_state: dict) -> None:
    ranks = learner.ranks
    dcp.save(tensors, checkpoint_id=fresh / "shards")
    torch.save({"algorithm": dict(learner.algorithm.state_dict()), **_rng_state()}, fresh / f"rng_rank{ranks.rank}.pt")
    if ranks.rank == 0:
        state = {
            "format": FORMAT,
            "world_size": ranks.world_size,
            "num_updates": learner.num_updates,
            "num_optimizer_steps": learner.optimizer.num_steps,
            "driver": driver_state,
        }
        (fresh / "state.json").write_text(json.dumps(state, indent=1))


def _own_sums(learner: Learner, fresh: Path) -> dict[str, FileSum]:
    """Flush the files that this rank wrote and return their checksums, except those of the policy, which are known."""
    rank = learner.ranks.rank
    names = [name for name in checksums.file_names(fresh) if _owner(name) == rank]
    known = {}
    if rank == 0:
        known = {f"policy/{name}": file for name, file in checksums.read(fresh / "policy").items()}
    rest = [name for name in names if name not in known]
    return known | checksums.measured(fresh, rest, lambda: learner.telemetry.count("checksummed_pieces"))


def _owner(name: str) -> int:
    match = _RANK.match(name)
    return int(match[1]) if match else 0


def _publish(learner: Learner, fresh: Path, folder: Path, sums: Sums) -> None:
    """Mark and rename the checkpoint after all ranks have flushed their files."""
    if learner.ranks.rank != 0:
        return
    checkpoint_folder.mark(fresh, checksums.write(fresh, sums))
    if folder.exists():  # the same step is saved twice, for example if a signal follows a save
        replaced = folder.parent / f".replaced-{folder.name}"
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(folder, replaced)
        checksums.put_in_place(fresh, folder)
        shutil.rmtree(replaced)
    else:
        checksums.put_in_place(fresh, folder)


# --- reading ----------------------------------------------------------------------------------


def _read_state(folder: Path) -> dict:
    if not folder.is_dir():
        raise _refused(
            f"There is no checkpoint at {folder}.",
            folder,
            "Correct the path, or take checkpoint.resume=auto.",
            row="checkpoint-unreadable",
        )
    if not is_complete(folder):
        raise _refused(
            f"{folder} is not a complete checkpoint.",
            folder,
            "Take another one; checkpoint.resume=auto finds the latest complete one.",
            cause=f"It has no {COMPLETE} marker: the save did not finish, or the folder is not a checkpoint.",
            row="checkpoint-unreadable",
        )
    try:
        state = json.loads((folder / "state.json").read_text())
        _check_state(folder, state)
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"state.json: {_reason(error)}") from error
    return state


def _check_state(folder: Path, state: object) -> None:
    """Check that the counters exist and fit each other and the folder's name: each training step is one update."""
    if not isinstance(state, dict) or set(state) != {"format", *_COUNTERS, "driver"}:
        raise ValueError(f"it does not hold exactly format, {', '.join(_COUNTERS)} and driver")
    for name in _COUNTERS:
        if type(state[name]) is not int or state[name] < 0:
            raise ValueError(f"{name} is {state[name]!r}")
    driver, num_updates = state["driver"], state["num_updates"]
    if not isinstance(driver, dict) or "step" not in driver:
        raise ValueError("the driver's counters are missing")
    named = checkpoint_folder.step_of(folder)
    if driver["step"] != num_updates or named not in (None, num_updates):
        raise ValueError(f"the driver was at step {driver['step']!r}, the weights at step {num_updates}")


def _check_shapes(folder: Path, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
    """Raise RunError for a checkpoint of another model, before reading tensors."""
    expected = {name: tuple(t.shape) for name, t in tensors.items() if name.startswith("model/")}
    found = {name: tuple(m.size) for name, m in saved.items() if name.startswith("model/")}
    faults = [f"{name[6:]} is missing" for name in expected.keys() - found.keys()]
    faults += [f"{name[6:]} is unknown" for name in found.keys() - expected.keys()]
    faults += [
        f"{name[6:]} has shape {found[name]}, the policy wants {expected[name]}"
        for name in expected.keys() & found.keys()
        if expected[name] != found[name]
    ]
    if faults:
        shown = sorted(faults)[:5] + ([f"and {len(faults) - 5} more"] if len(faults) > 5 else [])
        raise _refused(
            f"The checkpoint {folder} belongs to a policy of other sizes.",
            folder,
            "Start with the configuration it was made with (config.yaml in its run folder), or in a new output_dir.",
            cause="\n".join(shown),
            row="checkpoint-shapes-differ",
        )


def _refused(message: str, folder: Path, remedy: str, cause: str | None = None, *, row: str) -> RunError:
    return RunError(
        message,
        key="checkpoint.resume",
        value=str(folder),
        cause=cause,
        remedy=remedy,
        exit_status=ExitStatus.bad_input,
        row=row,
    )


def _damaged(folder: Path, reason: str | None) -> RunError:
    return _refused(
        f"The checkpoint {folder} cannot be read.",
        folder,
        "It is damaged: delete the folder, and checkpoint.resume=auto takes the newest whole one.",
        cause=reason,
        row="checkpoint-damaged",
    )


# --- tensors ----------------------------------------------------------------------------------


def _tensors(learner: Learner) -> dict[str, Tensor]:
    """Return every tensor of the training state by a flat name; shards, not whole tensors."""
    tensors = {f"model/{name}": tensor for name, tensor in learner.sharded.shards().items()}
    for name, parameter in learner.sharded.module.named_parameters():
        for key, value in learner.optimizer.inner.moments(parameter).items():
            tensors[f"optimizer/{name}/{key}"] = value
    if learner.reference is not None:
        tensors |= {f"reference/{name}": shard for name, shard in learner.reference.shards.items()}
    return tensors


def _tensors_like(learner: Learner, saved: dict[str, Any]) -> dict[str, Tensor]:
    """Return tensors to load into: those of the model, and empty ones for the saved optimizer state."""
    tensors = {f"model/{name}": tensor for name, tensor in learner.sharded.shards().items()}
    for name, parameter in learner.sharded.module.named_parameters():
        if f"optimizer/{name}/step" in saved:
            blank = learner.optimizer.inner.blank_moments(parameter)
            tensors |= {f"optimizer/{name}/{key}": tensor for key, tensor in blank.items()}
        if f"reference/{name}" in saved:
            tensors[f"reference/{name}"] = parameter.detach().to(learner.sharded.param_dtype, copy=True)
    return tensors


def _take(learner: Learner, tensors: dict[str, Tensor]) -> None:
    """Give loaded tensors to optimizer and reference; the model's shards were loaded in place."""
    optimizer = learner.optimizer.inner
    optimizer.state.clear()
    for name, parameter in learner.sharded.module.named_parameters():
        prefix = f"optimizer/{name}/"
        moments = {key[len(prefix) :]: t.detach() for key, t in tensors.items() if key.startswith(prefix)}
        if moments:
            optimizer.take_moments(parameter, moments)
    reference = {name[len("reference/") :]: t for name, t in tensors.items() if name.startswith("reference/")}
    learner.restore_reference(reference)


def _num_bytes(learner: Learner, tensors: dict[str, Tensor]) -> int:
    """Return the size of the whole checkpoint over all ranks: every tensor once, and parameters again in `policy/`."""
    return sum(t.numel() * t.element_size() * (2 if name.startswith("model/") else 1) for name, t in tensors.items())


# --- random numbers ---------------------------------------------------------------------------


def _rng_state() -> dict[str, Any]:
    state = np.random.get_state(legacy=False)  # noqa: NPY002  libraries still use this generator
    assert isinstance(state, dict)
    keys, position = state["state"]["key"], state["state"]["pos"]
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": (torch.from_numpy(keys.astype(np.int64)), position, state["has_gauss"], state["gauss"]),
        "python": random.getstate(),
    }


def _read_rng(learner: Learner, folder: Path, state: dict) -> dict[str, Tensor]:
    """Restore this rank's generators, and return what its algorithm remembered.

    A rank that did not exist when the checkpoint was written keeps its generators and remembers nothing.
    """
    if learner.ranks.rank >= state["world_size"]:
        return {}
    saved = torch.load(folder / f"rng_rank{learner.ranks.rank}.pt", weights_only=True)
    torch.set_rng_state(saved["torch"])
    if saved["device"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["device"])
    keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    random.setstate(saved["python"])
    return saved["algorithm"]
