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

    order: Tensor  # int64 [B]
    seen: Tensor  # bool [B, S], in that order
    segments: Segments

    @classmethod
    def of(cls, seen: Tensor) -> Packing:
        """Make a packing. seen: bool [B, S], False at padding. Waits for the device once, to get the lengths."""
        lengths = seen.sum(1)
        order = torch.argsort(lengths, stable=True)
        runs = tuple((len(list(alike)), length) for length, alike in groupby(lengths[order].tolist()))
        return cls(order, seen[order], Segments(runs))

    def pack(self, x: Tensor) -> Tensor:
        """Pack [B, S, D] -> [1, N, D]."""
        return x[self.order][self.seen][None]

    def positions(self) -> Tensor:
        """Return int64 [1, N]: positions in each row, from zero."""
        return (self.seen.cumsum(1) - 1)[self.seen][None]

    def unpack(self, packed: Tensor) -> Tensor:
        """Unpack [1, N, D] -> [B, S, D] in the original order, zero at padding."""
        rows = packed.new_zeros(*self.seen.shape, packed.shape[-1])
        rows[self.seen] = packed[0]
        return rows[torch.argsort(self.order)]


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
