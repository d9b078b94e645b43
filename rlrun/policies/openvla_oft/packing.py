"""Packs rows of different lengths end to end in one sequence, so that padding costs no computation.

Shape legend: B rows, S longest row, N tokens of all rows together, H heads, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from rlrun.config.schema import AttentionKernel
from rlrun.policies.openvla_oft.attention import Segments, attend, attend_packed

ATTENTION = {kernel: f"rlrun_{kernel.value}" for kernel in AttentionKernel}  # their names in transformers


@dataclass(frozen=True, eq=False)
class Packing:
    """The places of each row's tokens: rows are sorted by length, so that equal lengths share one attention call."""

    places: Tensor  # int64 [N]: each packed token's place among all B * S
    positions: Tensor  # int64 [1, N]: its position in its row, without padding, from zero
    shape: tuple[int, int]  # B, S
    segments: Segments

    @classmethod
    def of(cls, seen: Tensor, device: torch.device) -> Packing:
        """Make a packing for tensors on `device`. seen: bool [B, S] in host memory, False at padding.

        All is computed on the host and sent at once, so that the host need not wait for the device.
        """
        batch, longest = seen.shape
        lengths = seen.sum(1)
        order = torch.argsort(lengths, stable=True)
        runs = tuple((len(list(alike)), length) for length, alike in groupby(lengths[order].tolist()))
        places = torch.arange(batch * longest).reshape(batch, longest)[order][seen[order]]
        positions = torch.cat([torch.arange(length) for length in lengths[order].tolist()])
        sent = torch.stack([places, positions]).to(device, non_blocking=True)
        return cls(sent[0], sent[1][None], (batch, longest), Segments(runs))

    def pack(self, x: Tensor) -> Tensor:
        """Pack [B, S, D] -> [1, N, D]."""
        return x.flatten(0, 1).index_select(0, self.places)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """Unpack [1, N, D] -> [B, S, D] in the original order, zero at padding."""
        rows = packed.new_zeros(self.shape[0] * self.shape[1], packed.shape[-1])
        return rows.index_copy(0, self.places, packed[0]).unflatten(0, self.shape)


def attention(
    kernel: AttentionKernel,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    segments: Segments | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend in both directions inside each row: [1, H, N, D/H] each -> [1, N, H, D/H].

    Without `segments` the rows are those of the batch. There is no mask in either case, so that kernels without masks
    work; other arguments from transformers (a causal flag, dropout) are ignored.
    """
    if segments is None:
        return attend(kernel, query, key, value, scaling), None
    return attend_packed(kernel, query, key, value, scaling, segments), None


for _kernel, _name in ATTENTION.items():
    AttentionInterface.register(_name, partial(attention, _kernel))
