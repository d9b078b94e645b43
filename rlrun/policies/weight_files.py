"""The weights of a policy folder: names, shapes, and rows, which are read from disk on request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlrun.policies.adapters import first_value, is_adapter_name, plain_name
from rlrun.policies.folders import PICKLED_FILES, without_weights
from rlrun.system import local_files
from rlrun.system.errors import ExitStatus, RunError

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"
PROPRIO_FILES = "proprio_projector--*.pt"
FOREIGN_FILES = {  # parts that replace the action tokens, or change the towers
    "action_head--*.pt": "it was trained with a regression head, so that its action tokens mean nothing",
    "vision_backbone--*.pt": "its vision towers take the language embedding (FiLM), which rlrun's do not",
}
Shape = tuple[int, ...]
MAX_LAYERS = 1000
MAX_WIDTH = 65_536
_LISTS_OF_LAYERS = ("hidden_sizes", "channels")  # names that give the width of each layer, by their ends
MAX_SIZES = {("layers", "depth"): MAX_LAYERS, (*_LISTS_OF_LAYERS, "hidden_size", "image_size", "_dim"): MAX_WIDTH}
MAX_NAMES = 8  # in an error message
_RECOMPUTED = ".rotary_emb.inv_freq"  # buffers that older versions of transformers stored, and that rlrun computes
# names that the wrappers and classes of other trainers write in place of the official ones
_WRAPPERS = re.compile(r"^(module\.|base_model\.model\.)+")
# of wrappers that are taken off before a policy is saved: their names stay in a file only by mistake
_DDP = "module"  # at the beginning only: other networks have modules of this name
_LEFT_WRAPPERS = {
    _DDP: "DistributedDataParallel",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_forward_module": "Lightning",
}
_UNWRAPPING = (
    "python -c \"import re; from safetensors.torch import load_file, save_file; f = '{file}'; "
    "save_file({{re.sub('{pattern}', '', k): v for k, v in load_file(f).items()}}, f, {{'format': 'pt'}})\""
)
_RENAMED = ((re.compile(r"^value_head\.mlp\."), "value_head.layers."), (re.compile(r"\.gamma$"), ".scale_factor"))
MAX_FILE_BYTES = 5_000_000_000  # as in published checkpoints


class WeightFiles:
    """Every tensor of a folder, by the model's name; one file is open at a time.

    Example::

        files = WeightFiles(folder)
        files.shapes["projector.fc1.weight"]          # (8704, 2176)
        files.read("projector.fc1.weight", 0, 4352)   # the first half, as it is stored

    Raises RunError for a missing or unreadable file, or for a variant that cannot be trained.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._places: dict[str, tuple[Path, str]] = {}  # name -> (file, name in it); ordered by file
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._read: list[Path] = []
        self._open: tuple[Path, Any] | None = None
        self._refuse_foreign()
        for file in self._files():
            self._read.append(file)
            for stored in self._opened(file):
                require_unwrapped(file, stored)
                self._add(official_name(stored), file, stored)
        for file in sorted(folder.glob(PROPRIO_FILES)):
            self._read.append(file)
            for stored in self._opened(file):
                self._add(f"proprio_projector.{official_name(stored)}", file, stored)
        self.close()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return rows start..stop of the first axis, in the type on disk. Raises RunError if the file is damaged."""
        file, stored = self._places[name]
        try:
            return self._rows(self._opened(file), stored, start, stop)
        except (SafetensorError, OSError, RuntimeError) as error:
            self._unreadable(file, error)

    def opened(self) -> set[Path]:
        """Return the files that hold the tensors, also those that were skipped."""
        return {*self._read}

    def require_finite(self, name: str, tensor: Tensor) -> None:
        """Raise RunError if rows of `name` hold NaN or infinity, from which every action would be NaN."""
        require_finite(*self._places[name], tensor)

    def in_order(self) -> Iterator[str]:
        """Return names in an order in which each file is opened once."""
        yield from self._places

    def skip_prefix(self, prefix: str) -> None:
        """Forget all tensors whose names start with `prefix`."""
        for name in [name for name in self.shapes if name.startswith(prefix)]:
            del self._places[name], self.shapes[name]

    def rename(self, new_name: Callable[[str], str]) -> None:
        """Give every tensor another name. new_name: of the name until now."""
        self._places = {new_name(name): place for name, place in self._places.items()}
        self.shapes = {new_name(name): shape for name, shape in self.shapes.items()}

    def close(self) -> None:
        """Unmap the open file."""
        self._open = None

    def _rows(self, opened: Any, stored: str, start: int, stop: int | None) -> Tensor:
        if isinstance(opened, Mapping):
            tensor = opened[stored]
            return tensor[start:stop] if tensor.ndim else tensor
        tensor = opened.get_slice(stored)
        return tensor[start:stop] if tensor.get_shape() else opened.get_tensor(stored)

    def _add(self, name: str, file: Path, stored: str) -> None:
        if name.endswith(_RECOMPUTED):
            return
        opened = self._opened(file)
        shape = opened[stored].shape if isinstance(opened, Mapping) else opened.get_slice(stored).get_shape()
        self._places[name] = (file, stored)
        self.shapes[name] = tuple(shape)

    def _files(self) -> list[Path]:
        index = self._folder / INDEX_FILE
        names = [WEIGHTS_FILE]
        if index.is_file():
            named = read_json(index).get("weight_map")
            if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
                refuse(f"{index} has no weight_map from names to files.", "Copy the whole checkpoint again.")
            names = sorted({inside(self._folder, name) for name in named.values()})
        else:
            pickled = [name for name in PICKLED_FILES if (self._folder / name).is_file()]
            names = pickled[:1] if pickled and not (self._folder / WEIGHTS_FILE).is_file() else names
        for name in names:
            if not (self._folder / name).is_file():
                raise without_weights(self._folder, name)
        return [self._folder / name for name in names]

    def _opened(self, file: Path) -> Any:
        """Return the file: a mapping of names to tensors on disk, or a safetensors handle that iterates over names."""
        if self._open is None or self._open[0] != file:
            self._open = None  # unmap the one before
            try:
                self._open = (file, _mapped(file) if file.suffix == ".pt" else _Tensors(file))
            except (SafetensorError, OSError, RuntimeError, ValueError, UnpicklingError) as error:
                self._unreadable(file, error)
        return self._open[1]

    def _unreadable(self, file: Path, error: Exception) -> NoReturn:
        raise RunError(
            f"{file} cannot be read.",
            key="policy.path",
            value=str(self._folder),
            cause=f"{type(error).__name__}: {error}".splitlines()[0],
            remedy="It is damaged or was not copied completely: copy it again.",
            exit_status=ExitStatus.bad_input,
        ) from error

    def _refuse_foreign(self) -> None:
        for pattern, why in FOREIGN_FILES.items():
            for file in self._folder.glob(pattern):
                refuse(
                    f"The policy in {self._folder} cannot be trained by reinforcement learning: {why}.",
                    f"Take a checkpoint whose actions are tokens. If these are, take {file.name} out of the folder.",
                )


def official_name(stored: str) -> str:
    """Return the published model's name of a tensor. Example: official_name("module.fc1.weight") == "fc1.weight"."""
    name = _WRAPPERS.sub("", stored)
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


def require_finite(file: Path, stored: str, tensor: Tensor) -> None:
    """Raise RunError if a tensor of a file holds NaN or infinity."""
    if not tensor.numel() or not tensor.is_floating_point():
        return
    numbers = tensor.float() if tensor.element_size() == 1 else tensor
    least, most = torch.aminmax(numbers)  # both are NaN if any number is; takes no memory
    if bool(torch.isfinite(least)) and bool(torch.isfinite(most)):
        return
    count = int((~torch.isfinite(numbers)).sum())
    raise RunError(
        f"The weights in {file} are not finite.",
        key="policy.path",
        value=str(file.parent),
        cause=f"{stored} holds NaN or infinity: {count} of {tensor.numel()} numbers",
        remedy="Take an earlier checkpoint of its training, or copy the file again if the author's is whole.",
        exit_status=ExitStatus.bad_input,
    )


def require_unwrapped(file: Path, stored: str) -> None:
    """Raise RunError for a name that a wrapper has changed. Pickled files of RLinf and OFT may begin with `module.`."""
    is_pickled = file.suffix != ".safetensors"
    parts = stored.split(".")
    left = [part for part in _LEFT_WRAPPERS if part in (parts[:1] if part == _DDP else parts)]
    left = [part for part in left if part != _DDP or not is_pickled]
    if not left:
        return
    pattern = "|".join(f"^{part}[.]" if part == _DDP else f"{part}[.]" for part in left)
    command = f", or take the names out: `{_UNWRAPPING.format(file=file, pattern=pattern)}`"
    raise RunError(
        f"The names of tensors in {file} are not those of the policy.",
        key="policy.path",
        value=str(file.parent),
        cause=f"{stored} has the name of a wrapper: " + ", ".join(f"{part} of {_LEFT_WRAPPERS[part]}" for part in left),
        remedy=f"Save the network inside of the wrapper{'' if is_pickled else command}.",
        exit_status=ExitStatus.bad_input,
    )


def refuse(message: str, remedy: str) -> NoReturn:
    """Raise a RunError about the folder of `policy.path`."""
    raise RunError(message, key="policy.path", remedy=remedy, exit_status=ExitStatus.bad_input)


def inside(folder: Path, name: object) -> str:
    """Return the name of a file that a policy's folder gives. Raises RunError if it leads out of the folder."""
    path = Path(str(name))
    if path.is_absolute() or ".." in path.parts:
        refuse(
            f"The policy in {folder} names a file outside of its folder: {name}.",
            "Copy that file into the folder, and write its name there.",
        )
    return str(name)


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a policy folder. Raises RunError if it is damaged, or names absurd sizes."""
    try:
        header = local_files.read_json(file)
        if not isinstance(header, dict):
            raise ValueError(f"it holds a {type(header).__name__}, not an object")
        _check_sizes(header)
    except (OSError, ValueError) as error:
        raise RunError(
            f"{file} cannot be read.",
            key="policy.path",
            value=str(file.parent),
            cause=str(error),
            remedy="It is damaged or was not copied completely: copy it again.",
            exit_status=ExitStatus.bad_input,
        ) from error
    return header


def _check_sizes(described: dict[str, Any]) -> None:
    """Raise ValueError for sizes that would take memory before they are compared with the weights."""
    for key, value in described.items():
        limit = next((limit for names, limit in MAX_SIZES.items() if key.endswith(names)), None)
        if isinstance(value, list) and key.endswith(_LISTS_OF_LAYERS) and len(value) > MAX_LAYERS:
            raise ValueError(f"{key} describes {len(value)} layers, and may describe {MAX_LAYERS} at most")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                _check_sizes(item)
            elif limit is not None and isinstance(item, (int, float)) and item > limit:
                raise ValueError(f"{key} is {value!r:.100}, and may be {limit} at most")


def check_tensors(
    folder: Path, expected: Mapping[str, Shape], tensors: Mapping[str, Shape], optional: Collection[str] = ()
) -> None:
    """Compare names and shapes before any value is read; `optional` names may be missing.

    Raises RunError that names the tensors.
    """
    missing = [name for name in expected if name not in tensors and name not in optional]
    unknown = [name for name in tensors if name not in expected]
    reshaped = [
        f"{name} {shape} (expected {expected[name]})"
        for name, shape in tensors.items()
        if name in expected and shape != expected[name]
    ]
    faults = [
        f"{len(names)} {what}: {', '.join(names[:MAX_NAMES])}{' …' if len(names) > MAX_NAMES else ''}"
        for what, names in (("missing", missing), ("unknown", unknown), ("of other shapes", reshaped))
        if names
    ]
    if faults:
        refuse(
            f"The tensors in {folder} are not those that its config.json describes: {'; '.join(faults)}.",
            "Take config.json and weights from the same checkpoint, written completely.",
        )


class _Tensors:
    """A safetensors file that iterates over its names."""

    def __init__(self, file: Path):
        self._handle = safe_open(file, framework="pt")
        self.get_slice = self._handle.get_slice
        self.get_tensor = self._handle.get_tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._handle.keys())


def _mapped(file: Path) -> dict[str, Tensor]:
    """Return a pickled state dict, memory-mapped; only tensors and plain containers are allowed."""
    loaded = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    loaded = loaded.get("model", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError("it holds something else than tensors by name")
    return loaded


def write_weights(
    folder: Path, named_tensors: Iterable[tuple[str, Tensor]], max_file_bytes: int = MAX_FILE_BYTES
) -> None:
    """Write tensors as they arrive; at most one file's worth is held.

    A tensor larger than `max_file_bytes` gets a file of its own. Remaining files of an earlier save are removed.
    Raises OSError if a file cannot be written.
    """
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    files: list[list[str]] = []
    held: dict[str, Tensor] = {}
    num_bytes = total_bytes = 0
    for name, tensor in named_tensors:
        size = tensor.numel() * tensor.element_size()
        if held and num_bytes + size > max_file_bytes:
            files.append(_write(folder, len(files), held))
            held = {}
            num_bytes = 0
        held[name] = tensor.detach().to("cpu").contiguous()
        num_bytes = num_bytes + size
        total_bytes = total_bytes + size
    files.append(_write(folder, len(files), held))
    _name(folder, files, total_bytes)


def _write(folder: Path, index: int, tensors: dict[str, Tensor]) -> list[str]:
    # safetensors would write a slice as the whole storage behind it
    whole = {name: t if t.numel() == _storage_numel(t) else t.clone() for name, t in tensors.items()}
    try:
        save_file(whole, folder / f".part-{index}", metadata={"format": "pt"})
    except SafetensorError as error:  # this error hides the cause on the disk
        raise OSError(str(error)) from error
    return list(whole)


def _storage_numel(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _name(folder: Path, files: list[list[str]], total_bytes: int) -> None:
    """Rename the files to include their number, which is known only after the last one."""
    if len(files) == 1:
        (folder / ".part-0").rename(folder / WEIGHTS_FILE)
        return
    weight_map: dict[str, str] = {}
    for index, names in enumerate(files):
        name = f"model-{index + 1:05}-of-{len(files):05}.safetensors"
        (folder / f".part-{index}").rename(folder / name)
        weight_map |= dict.fromkeys(names, name)
    index_file = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX_FILE).write_text(json.dumps(index_file, indent=2) + "\n")


class StoredWeights:
    """All tensors of one policy: those of its folder, and the new parts that the folder lacks, made when read."""

    def __init__(
        self,
        files: WeightFiles,
        new_parts: Mapping[str, Callable[[], Tensor]],
        seed: int,
        unread: Collection[str] = (),
    ):
        """seed: for adapters, which no folder contains. unread: names that no forward pass reads."""
        self._files = files
        self._new_parts = new_parts
        self._unread = unread
        self.seed = seed
        self.progress: Callable[[], None] = lambda: None  # called for each tensor: a cold disk takes minutes

    def in_order(self) -> Iterator[str]:
        """Yield every name once, file by file."""
        yield from (name for name in self._files.in_order() if name not in self._new_parts)
        yield from self._new_parts

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return rows start..stop of the first axis. Raises RunError if a file is damaged, or a number not finite."""
        self.progress()
        if name not in self._new_parts:
            tensor = self._files.read(name, start, stop)
            if name not in self._unread:
                self._files.require_finite(name, tensor)
            return tensor
        tensor = self._new_parts[name]()
        return tensor[start:stop] if tensor.ndim else tensor

    def close(self) -> None:
        """Unmap the file that is open."""
        self._files.close()


@torch.no_grad()
def fill(module: nn.Module, weights: StoredWeights, device: torch.device | str) -> None:
    """Give a module its values on `device`, and its memory if it is on the meta device; without communication.

    For a sharded module each rank reads its own rows: beside its shards it holds one tensor's rows at a time.
    """
    if any(parameter.is_meta for parameter in module.parameters()):
        module.to_empty(device=device)
        restore: Callable[[], None] | None = getattr(module, "restore_buffers", None)  # buffers that no folder contains
        if restore is not None:
            restore()
    else:
        module.to(device)
    targets = {plain_name(name): tensor for name, tensor in module.state_dict().items()}
    for name in weights.in_order():
        target = targets.pop(name)
        local, rows = _own_rows(target)
        if local.numel():
            local.copy_(weights.read(name, rows.start, rows.stop))
    weights.close()
    for name, target in targets.items():
        if not is_adapter_name(name):
            raise ValueError(f"nothing was read for {name}")
        local, rows = _own_rows(target)
        local.copy_(first_value(name, target.shape, weights.seed)[rows])


def _own_rows(tensor: Tensor) -> tuple[Tensor, slice]:
    """Return this rank's part of a tensor, and its rows in the whole tensor."""
    if not isinstance(tensor, DTensor):
        return tensor, slice(0, None)
    rows = range(tensor.shape[0])
    for axis, placement in enumerate(tensor.placements):
        if placement.is_shard():  # like torch.chunk: parts of equal size, the last ones shorter or empty
            size = -(-len(rows) // tensor.device_mesh.size(axis))
            start = size * tensor.device_mesh.get_local_rank(axis)
            rows = rows[start : start + size]
    return tensor.to_local(), slice(rows.start, rows.stop)
