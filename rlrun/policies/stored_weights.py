"""Fills parameters without memory from a policy folder: whole ones, or the shards of one FSDP rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlrun.policies.adapter_values import first_value, is_adapter_name, plain_name
from rlrun.policies.weight_files import WeightFiles


class StoredWeights:
    """All tensors of one policy: those of its folder, and the new parts that the folder lacks, made when read."""

    def __init__(self, files: WeightFiles, new_parts: Mapping[str, Callable[[], Tensor]], seed: int):
        """seed: for adapters, which no folder contains."""
        self._files, self._new_parts, self.seed = files, new_parts, seed

    def in_order(self) -> Iterator[str]:
        """Yield every name once, file by file."""
        yield from (name for name in self._files.in_order() if name not in self._new_parts)
        yield from self._new_parts

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return rows start..stop of the first axis. Raises RunError if a file is damaged."""
        if name not in self._new_parts:
            return self._files.read(name, start, stop)
        tensor = self._new_parts[name]()
        return tensor[start:stop] if tensor.ndim else tensor

    def close(self) -> None:
        """Unmap the file that is open."""
        self._files.close()


@torch.no_grad()
def fill(module: nn.Module, weights: StoredWeights, device: torch.device | str) -> None:
    """Give a module on the meta device its memory on `device`, and its values; without communication.

    For a sharded module each rank reads its own rows: beside its shards it holds one tensor's rows at a time.
    """
    module.to_empty(device=device)
    restore: Callable[[], None] | None = getattr(module, "restore_buffers", None)  # buffers that no folder contains
    if restore is not None:
        restore()
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
