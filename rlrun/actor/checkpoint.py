"""Checkpoints of the actor, restored by any number of ranks; `checkpoint_writing` writes them atomically.

A checkpoint folder holds `shards/` (torch DCP: parameters, optimizer state, other weights), `policy/` (a Hugging
Face folder), `rng_rank<r>.pt` (random generators, and the state of the algorithm), `state.json` (counters and the
driver's own state), `checksums.json` of all of these and, last, the marker. The folder has a temporary name until all
its files are flushed to the disk, and is then renamed: even a power cut leaves no marker beside incomplete files.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, Metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import StorageMeta, TensorStorageMetadata

from rlrun.actor.checkpoint_writing import reason_of
from rlrun.data import checkpoint_folder
from rlrun.data.checkpoint_folder import COMPLETE, is_complete
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json
from rlrun.system.storage_error import storage_failure
from rlrun.system.text import first_of

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner


INDEX = ".metadata"
_SHOWN = 5  # tensors of other sizes that a message names
_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata")),
    *((_METADATA, name) for name in ("TensorProperties", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),  # from its name to torch.strided and the like
    ("torch", "Size"),
    ("pathlib", "PosixPath"),  # where the checkpoint was written, which nothing reads
}
_COUNTERS = ("world_size", "num_updates", "num_optimizer_steps")


class ShardReader(FileSystemReader):
    """torch's reader of a folder of shards, which runs no code of the folder."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index. Raises OSError, and UnpicklingError for anything but an index of tensors."""
        data = (Path(self.path) / INDEX).read_bytes()
        try:
            metadata = self._checked(_unpickled(data))
        except pickle.UnpicklingError:
            raise
        except Exception as error:  # damaged bytes raise what the unpickler happens to meet
            raise pickle.UnpicklingError(f"{INDEX} is no index of shards: {reason_of(error)}") from error
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata

    @staticmethod
    def _checked(metadata: Any) -> Metadata:
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise pickle.UnpicklingError(f"{INDEX} is no index of shards")
        for name, stored in metadata.state_dict_metadata.items():
            if not isinstance(stored, TensorStorageMetadata):
                raise pickle.UnpicklingError(f"{INDEX} calls {name!r} a {type(stored).__name__}, no tensor")
        for place in metadata.storage_data.values():
            if Path(place.relative_path).name != place.relative_path or place.transform_descriptors:
                raise pickle.UnpicklingError(f"{INDEX} leads to {place.relative_path!r}, which is no shard beside it")
        return metadata


def _unpickled(data: bytes) -> Any:
    """Return the object in an index. A number of the unpickler's memo above the bytes would take memory for nothing."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise pickle.UnpicklingError(f"{INDEX} numbers an object {argument}, and has {len(data)} bytes")
    return _IndexUnpickler(io.BytesIO(data)).load()


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) not in _CLASSES and not is_dtype:
            raise pickle.UnpicklingError(f"{INDEX} names {module}.{name}, which no index of shards has")
        return super().find_class(module, name)


def restore(learner: Learner, folder: Path) -> dict:
    """Read `folder`, written by any number of ranks, into the learner. Returns the driver's state.

    All ranks call it. `checkpoint_search.latest_valid` compares checksums before. Raises RunError if the folder is
    missing, incomplete, of another model, or too damaged to read.
    """
    learner.sharded.offloader.require_device("a restore")
    state = _read_state(folder)
    reader = ShardReader(folder / "shards")
    failure: BaseException | None = None
    algorithm_state: dict[str, Tensor] = {}
    try:
        saved = reader.read_metadata().state_dict_metadata
        tensors = _tensors_like(learner, saved)
        _check_shapes(folder, tensors, saved)
        dcp.load(tensors, storage_reader=reader)
        algorithm_state = _read_rng(learner, folder, state)
    except RunError:
        raise
    except (Exception, CheckpointException) as error:  # checksums may not have been compared: bytes raise anything
        failure = error
    faults = [fault for fault in learner.ranks.gather(_unread(folder, failure, learner.ranks.rank)) if fault]
    if faults:
        raise faults[0] from failure
    _take(learner, tensors)
    learner.algorithm.load_state_dict(algorithm_state)
    learner.num_updates = state["num_updates"]
    learner.optimizer.num_steps = state["num_optimizer_steps"]
    return state["driver"]


# --- reading ----------------------------------------------------------------------------------


def _read_state(folder: Path) -> dict:
    if not folder.is_dir():
        raise _refused(
            f"There is no checkpoint at {folder}.",
            folder,
            "Correct the path, or take checkpoint.resume=auto.",
        )
    if not is_complete(folder):
        raise _refused(
            f"{folder} is not a complete checkpoint.",
            folder,
            "Take another one; checkpoint.resume=auto finds the latest complete one.",
            cause=f"It has no {COMPLETE} marker: the save did not finish, or the folder is not a checkpoint.",
        )
    try:
        state = read_json(folder / "state.json")
        _check_state(folder, state)
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"state.json: {reason_of(error)}") from error
    return state


def _check_state(folder: Path, state: object) -> None:
    """Check that the counters exist and fit each other and the folder's name: each training step is one update."""
    if not isinstance(state, dict) or set(state) != {"format", *_COUNTERS, "driver"}:
        raise ValueError(f"it does not hold exactly format, {', '.join(_COUNTERS)} and driver")
    for name in _COUNTERS:
        if type(state[name]) is not int or state[name] < 0:
            raise ValueError(f"{name} is {state[name]!r}")
    driver = state["driver"]
    num_updates = state["num_updates"]
    if not isinstance(driver, dict) or "step" not in driver:
        raise ValueError("the driver's counters are missing")
    named = checkpoint_folder.step_of(folder)
    if driver["step"] != num_updates or named not in (None, num_updates):
        raise ValueError(f"the driver was at step {driver['step']!r}, the weights at step {num_updates}")


def _check_shapes(folder: Path, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
    """Raise RunError for a checkpoint of another model, before reading tensors."""
    expected = {name: tuple(t.shape) for name, t in tensors.items() if name.startswith("model/")}
    stored = {name: tuple(m.size) for name, m in saved.items() if name.startswith("model/")}
    faults = [f"{name[6:]} is missing" for name in expected.keys() - stored.keys()]
    faults += [f"{name[6:]} is unknown" for name in stored.keys() - expected.keys()]
    faults += [
        f"{name[6:]} has shape {stored[name]}, the policy wants {expected[name]}"
        for name in expected.keys() & stored.keys()
        if expected[name] != stored[name]
    ]
    if faults:
        raise _refused(
            f"The checkpoint {folder} belongs to a policy of other sizes.",
            folder,
            "Start with the configuration it was made with (config.yaml in its run folder), or in a new output_dir.",
            cause=first_of(sorted(faults), _SHOWN, "\n"),
        )


def _refused(message: str, folder: Path, remedy: str, cause: str | None = None) -> RunError:
    return RunError(
        message,
        key="checkpoint.resume",
        value=str(folder),
        cause=cause,
        remedy=remedy,
        exit_status=ExitStatus.bad_input,
    )


def _unread(folder: Path, failure: BaseException | None, rank: int) -> RunError | None:
    """Return the error of this rank's reading, by the system or of damaged files; None: it has read."""
    if failure is None:
        return None
    refused = storage_failure(failure, f"actor/{rank}, which reads {folder},", [str(folder)], worker=f"actor/{rank}")
    return refused or _damaged(folder, reason_of(failure))


def _damaged(folder: Path, reason: str | None) -> RunError:
    return _refused(
        f"The checkpoint {folder} cannot be read.",
        folder,
        "It is damaged: delete the folder, and checkpoint.resume=auto takes the latest valid one.",
        cause=reason,
    )


# --- tensors ----------------------------------------------------------------------------------


def _tensors_like(learner: Learner, saved: dict[str, Any]) -> dict[str, Tensor]:
    """Return tensors to load into: those of the model, and empty ones for the saved optimizer state."""
    tensors = {f"model/{name}": tensor for name, tensor in learner.sharded.shards().items()}
    for name, parameter in learner.sharded.module.named_parameters():
        if f"optimizer/{name}/step" in saved:
            blank = learner.optimizer.inner.blank_moments(parameter)
            tensors |= {f"optimizer/{name}/{key}": tensor for key, tensor in blank.items()}
        if f"reference/{name}" in saved:
            tensors[f"reference/{name}"] = parameter.detach().to(learner.sharded.param_dtype, copy=True)
        if f"learned/{name}" in saved and learner.algorithm.acting_share(0) is not None:
            tensors[f"learned/{name}"] = parameter.detach().clone()
    for name, buffer in learner.sharded.module.named_buffers():
        if f"reference/{name}" in saved:
            tensors[f"reference/{name}"] = buffer.clone()
    return tensors


def _take(learner: Learner, tensors: dict[str, Tensor]) -> None:
    """Give loaded tensors to optimizer, reference and `learned`; the model's shards were loaded in place."""
    optimizer = learner.optimizer.inner
    optimizer.state.clear()
    for name, parameter in learner.sharded.module.named_parameters():
        prefix = f"optimizer/{name}/"
        moments = {key[len(prefix) :]: t.detach() for key, t in tensors.items() if key.startswith(prefix)}
        if moments:
            optimizer.take_moments(parameter, moments)
    reference = {name[len("reference/") :]: t for name, t in tensors.items() if name.startswith("reference/")}
    learner.restore_reference(reference)
    learned = {name[len("learned/") :]: t for name, t in tensors.items() if name.startswith("learned/")}
    learner.learned = learned or None


# --- random numbers ---------------------------------------------------------------------------


def _read_rng(learner: Learner, folder: Path, state: dict) -> dict[str, Tensor]:
    """Restore this rank's generators, and return the state of its algorithm.

    A rank that did not exist when the checkpoint was written keeps its generators and returns {}.
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
