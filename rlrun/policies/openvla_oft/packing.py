"""Rows of unlike length end to end in one sequence, so that padding is neither computed nor attended to.

Shape legend: B rows, S longest row, N tokens of all rows together, H heads, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

ATTENTION = "rlrun_packed"  # what a language model's config asks transformers for
Segments = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the tokens of each row go: rows in order of their length, so that alike ones are one attention call."""

    order: Tensor  # int64 [B]
    seen: Tensor  # bool [B, S], in that order
    segments: Segments  # (rows, tokens in each) of neighbours of one length. Example: ((3, 998), (1, 1002))

    @classmethod
    def of(cls, seen: Tensor) -> Packing:
        """seen: bool [B, S], False at padding. Waits for the device once: lengths shape what follows."""
        lengths = seen.sum(1)
        order = torch.argsort(lengths, stable=True)
        segments = tuple((len(list(alike)), length) for length, alike in groupby(lengths[order].tolist()))
        return cls(order, seen[order], segments)

    def pack(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [1, N, D]."""
        return x[self.order][self.seen][None]

    def positions(self) -> Tensor:
        """int64 [1, N]: each row counts from zero."""
        return (self.seen.cumsum(1) - 1)[self.seen][None]

    def unpack(self, packed: Tensor) -> Tensor:
        """[1, N, D] -> [B, S, D] in the first order, zero at padding."""
        rows = packed.new_zeros(*self.seen.shape, packed.shape[-1])
        rows[self.seen] = packed[0]
        return rows[torch.argsort(self.order)]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    segments: Segments | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Two-sided attention inside each row: [1, H, N, D/H] each -> [1, N, H, D/H].

    Without `segments` the rows are those of the batch. No mask either way, so that torch may take its FlashAttention
    kernel; what else transformers passes (a causal flag, dropout) means nothing here.
    """
    if segments is None:
        return _attend(query, key, value, scaling).transpose(1, 2), None
    mixed, start = [], 0
    for rows, length in segments:
        end = start + rows * length
        parts = (x[0, :, start:end].unflatten(1, (rows, length)).transpose(0, 1) for x in (query, key, value))
        mixed.append(_attend(*parts, scaling).transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(mixed)[None], None


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    is_grouped = key.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=is_grouped)


AttentionInterface.register(ATTENTION, attention)
