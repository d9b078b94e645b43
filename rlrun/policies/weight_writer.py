"""Writes a policy's tensors in the official layout: numbered safetensors files and an index."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlrun.policies.weight_files import INDEX_FILE, WEIGHTS_FILE

MAX_FILE_BYTES = 5_000_000_000  # as in published checkpoints


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
            held, num_bytes = {}, 0
        held[name] = tensor.detach().to("cpu").contiguous()
        num_bytes, total_bytes = num_bytes + size, total_bytes + size
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
