"""Gathers whole tensors from the shards of all ranks: one collective for many tensors, while the next is under way.

`FSDPModule.unshard()` would gather in the precision of computing. Rollout workers and policy folders have precisions of
their own, and adapters are merged in float32, so shards are cast, or not, before they are gathered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from rlrun.policies.adapters import merged
from rlrun.policies.offloading import local

GATHERED_BYTES = 256 * 1024**2  # of whole tensors in one collective; two are under way
_ALIGNMENT_BYTES = 16  # a view needs a multiple of its item size


@dataclass(frozen=True)
class GatherSpec:
    """A tensor to be gathered, alone or with the adapter that is merged into it.

    Example: GatherSpec("fc1.weight", (weight, a.weight, b.weight), torch.bfloat16, scale=2.0)
    """

    name: str
    shards: tuple[Tensor, ...]
    dtype: torch.dtype | None  # in which it is wanted; None: unchanged, and float32 if it is merged
    scale: float | None = None  # of the adapter; None: there is none

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensors, before a cast."""
        return sum(shard.numel() * shard.element_size() for shard in self.shards)

    def meta(self) -> Tensor:
        """Return a tensor of the shape and type of the result, without memory."""
        shard = self.shards[0]
        dtype = shard.dtype if self.scale is None else torch.float32
        if self.dtype is not None and dtype.is_floating_point:
            dtype = self.dtype
        return torch.empty(shard.shape, dtype=dtype, device="meta")

    def wire_dtype(self, shard: Tensor) -> torch.dtype:
        """Return the type in which the rows of a shard are gathered: what is merged is cast afterwards."""
        is_cast = self.scale is None and self.dtype is not None and shard.is_floating_point()
        return self.dtype if is_cast and self.dtype is not None else shard.dtype

    def assemble(self, whole: Sequence[Tensor]) -> Tensor:
        """Return the result from whole tensors, on their device."""
        if self.scale is None:
            return whole[0]
        weight, a, b = whole
        return merged(weight, a, b, self.scale).to(self.dtype or torch.float32)


def gathered(wanted: Iterable[GatherSpec], device: torch.device | str) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, whole tensor) on the device, in order. A collective: every rank must exhaust the iterator."""
    before: _Collective | None = None
    for batch in _batches(wanted):
        started = _Collective(batch, torch.device(device))
        if before is not None:
            yield from before.finish()
        before = started
    if before is not None:
        yield from before.finish()


def _batches(wanted: Iterable[GatherSpec]) -> Iterator[list[GatherSpec]]:
    batch: list[GatherSpec] = []
    num_bytes = 0
    for spec in wanted:
        if batch and num_bytes + spec.num_bytes > GATHERED_BYTES:
            yield batch
            batch = []
            num_bytes = 0
        batch.append(spec)
        num_bytes += spec.num_bytes
    if batch:
        yield batch


@dataclass(frozen=True)
class _Place:
    """Where a rank's rows are in its part of the collective; every rank has room for the same number of rows."""

    offset: int
    num_bytes: int
    dtype: torch.dtype
    shape: torch.Size  # of the whole tensor

    def rows_in(self, part: Tensor) -> Tensor:
        """Return the room for all rows of a rank, [rows, ...], a view of its part, uint8."""
        room = part[self.offset : self.offset + self.num_bytes].view(self.dtype)
        return room.view(-1, *self.shape[1:])

    def whole_in(self, parts: Tensor) -> Tensor:
        """Return the whole tensor, a copy. parts: uint8 [ranks, bytes]."""
        rows = parts[:, self.offset : self.offset + self.num_bytes].reshape(-1).view(self.dtype)
        return rows[: self.shape.numel()].view(self.shape)


class _Collective:
    """One gathering under way."""

    def __init__(self, batch: list[GatherSpec], device: torch.device):
        self._batch = batch
        self._whole: dict[int, Tensor] = {}  # by number: tensors of which this rank has all rows
        self._places: dict[int, _Place] = {}
        self._group: dist.ProcessGroup | None = None
        rows: dict[int, Tensor] = {}
        end = 0
        number = 0
        for spec in batch:
            for shard in spec.shards:
                rows_here = local(shard.detach())
                dtype = spec.wire_dtype(rows_here)
                group, size = _group_of(shard)
                if group is None:
                    self._whole[number] = rows_here.to(device, dtype)
                else:
                    self._group = group
                    rows[number] = rows_here
                    num_rows = -(-shard.shape[0] // size)
                    num_bytes = num_rows * shard.shape[1:].numel() * dtype.itemsize
                    self._places[number] = _Place(end, num_bytes, dtype, shard.shape)
                    end = -(-(end + num_bytes) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
                number += 1
        self._work: Any = None
        if self._group is not None:
            part = torch.empty(end, dtype=torch.uint8, device=device)
            for index, rows_here in rows.items():
                self._places[index].rows_in(part)[: len(rows_here)].copy_(rows_here, non_blocking=True)
            self._parts = torch.empty(dist.get_world_size(self._group), end, dtype=torch.uint8, device=device)
            # only NCCL lets the stream wait in place of this thread, and only there something goes on meanwhile
            is_beside = device.type == "cuda" and "nccl" in dist.get_backend_config(self._group)
            self._work = dist.all_gather_single(self._parts.view(-1), part, group=self._group, async_op=is_beside)

    def finish(self) -> Iterator[tuple[str, Tensor]]:
        """Let the device wait for the other ranks. Yields (name, whole tensor)."""
        if self._work is not None:
            self._work.synchronize()
        number = 0
        for spec in self._batch:
            whole_tensors = []
            for _ in spec.shards:
                place = self._places.get(number)
                whole_tensors.append(self._whole.pop(number) if place is None else place.whole_in(self._parts))
                number += 1
            yield spec.name, spec.assemble(whole_tensors)


def _group_of(tensor: Tensor) -> tuple[dist.ProcessGroup | None, int]:
    """Return the ranks among which the rows of a tensor are split, and their number; None: this rank has all rows."""
    if not isinstance(tensor, DTensor):
        return None, 1
    for axis, placement in enumerate(tensor.placements):
        if placement.is_shard() and tensor.device_mesh.size(axis) > 1:
            assert placement == Shard(0), placement  # FSDP splits rows
            return tensor.device_mesh.get_group(axis), tensor.device_mesh.size(axis)
    return None, 1
