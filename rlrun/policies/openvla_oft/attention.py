"""Bidirectional attention by the requested kernel, or by the best one that is installed.

Shape legend: B rows, S tokens per row, N tokens of all rows end to end, H heads, E width of a head.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

from rlrun.config.schema import AttentionKernel, Precision
from rlrun.policies.upload import uploaded
from rlrun.system.errors import ExitStatus, RunError

MIN_CAPABILITY = (8, 0)

logger = logging.getLogger(__name__)
ATTENTION = {kernel: f"rlrun_{kernel.value}" for kernel in AttentionKernel}  # their names in transformers


class Segments:
    """Numbers (rows, tokens per row) of neighbours of equal length. Example: Segments(((3, 998), (1, 1002))).

    It is a class so that torch.compile treats it as one object and makes no graph per combination of lengths.
    """

    def __init__(self, runs: tuple[tuple[int, int], ...]):
        self.runs = runs
        self.longest = max(length for _, length in runs)
        self._bounds: Tensor | None = None

    def bounds(self, device: torch.device) -> Tensor:
        """Return int32 [rows + 1]: the start of each row, and the end; computed once."""
        if self._bounds is None:
            lengths = [0] + [length for rows, length in self.runs for _ in range(rows)]
            self._bounds = torch.tensor(lengths).cumsum(0).to(device, torch.int32)
        return self._bounds


def chosen_kernel(asked: AttentionKernel | None, device: torch.device, precision: Precision) -> AttentionKernel:
    """Return the kernel: `policy.attention`, else flash-attn if it is installed and applicable.

    Raises RunError if flash is requested and not available.
    """
    if asked not in (None, AttentionKernel.flash):
        return asked
    is_flash_possible = device.type == "cuda" and precision is Precision.bf16 and flash_fault() is None
    is_flash_possible = is_flash_possible and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
    if asked is AttentionKernel.flash and not is_flash_possible:
        _refuse_flash(device, precision)
    return AttentionKernel.flash if is_flash_possible else AttentionKernel.sdpa


@cache
def flash_fault() -> str | None:
    """Return the error of importing flash-attn's functions; None if they can be imported.

    A folder flash_attn is no proof: flash-attn-4 has one without these functions, and a build for another torch fails
    when it is imported.
    """
    try:
        from flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: F401
    except ModuleNotFoundError:
        return "The package flash-attn is not installed here."
    except Exception as error:  # a binary for another torch or CUDA may raise anything
        logger.warning("flash-attn is installed, but cannot be imported, so torch's attention is used: %s", error)
        return f"The package flash-attn is installed here, but cannot be imported: {error}"
    return None


def _refuse_flash(device: torch.device, precision: Precision) -> NoReturn:
    fault = flash_fault()
    if fault is not None:
        cause = fault
        remedy = "`pip install flash-attn` for this torch"
    elif device.type != "cuda":
        cause = f"It computes on CUDA devices only; this worker has {device}."
        remedy = "Give the role accelerators"
    elif precision is Precision.bf16:
        cause = "It needs compute capability 8.0 or later (Ampere); this accelerator is older."
        remedy = "Set policy.attention=sdpa"
    else:
        cause = f"It computes in half precision; this worker computes in {precision.name}."
        remedy = "Set actor.param_precision=bf16 and rollout.precision=bf16"
    raise RunError(
        "Attention by flash-attn is not possible here.",
        key="policy.attention",
        value=AttentionKernel.flash.name,
        cause=cause,
        remedy=f"{remedy}, or leave the key out: torch's own attention has a FlashAttention kernel too.",
        exit_status=ExitStatus.doctor,
    )


def attend(kernel: AttentionKernel, query: Tensor, key: Tensor, value: Tensor, scaling: float | None = None) -> Tensor:
    """Attend within each row: [B, H, S, E] each -> [B, S, H, E]. Keys and values may have fewer heads."""
    if kernel is AttentionKernel.flash:
        from flash_attn import flash_attn_func

        swapped = (x.transpose(1, 2) for x in (query, key, value))
        return flash_attn_func(*swapped, softmax_scale=scaling, causal=False)
    if kernel is AttentionKernel.eager:
        return _eager(query, key, value, scaling).transpose(1, 2)
    is_grouped = key.shape[1] != query.shape[1]
    mixed = F.scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=is_grouped)
    return mixed.transpose(1, 2)


@torch.compiler.disable  # lengths differ between batches, and a graph does not make a kernel faster
def attend_packed(
    kernel: AttentionKernel, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, segments: Segments
) -> Tensor:
    """Attend within each row only: [1, H, N, E] each -> [1, N, H, E]."""
    if kernel is AttentionKernel.flash:
        return _flash_packed(query, key, value, scaling, segments)
    mixed = []
    start = 0
    for rows, length in segments.runs:
        end = start + rows * length
        q, k, v = (x[0, :, start:end].unflatten(1, (rows, length)).transpose(0, 1) for x in (query, key, value))
        mixed.append(attend(kernel, q, k, v, scaling).flatten(0, 1))
        start = end
    return torch.cat(mixed)[None]


def _flash_packed(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, segments: Segments) -> Tensor:
    from flash_attn import flash_attn_varlen_func

    bounds = segments.bounds(query.device)
    rows = (x[0].transpose(0, 1) for x in (query, key, value))
    longest = segments.longest
    mixed = flash_attn_varlen_func(*rows, bounds, bounds, longest, longest, softmax_scale=scaling, causal=False)
    return mixed[None]


def _eager(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Attend by the textbook formula, as the reference for the kernels."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    weights = (query @ key.transpose(-1, -2) * scaling).float().softmax(-1)
    return weights.to(value.dtype) @ value


@dataclass(frozen=True, eq=False)
class Packing:
    """The places of each row's tokens: rows are sorted by length, so that equal lengths share one attention call."""

    places: Tensor  # int64 [N]: each packed token's place among all B * S
    positions: Tensor  # int64 [1, N]: its position in its row, without padding, from zero
    shape: tuple[int, int]  # B, S
    segments: Segments

    @classmethod
    def from_mask(cls, seen: Tensor, device: torch.device) -> Packing:
        """Make a packing for tensors on `device`. seen: bool [B, S] in host memory, False at padding.

        All is computed on the host and sent at once, so that the host need not wait for the device.
        """
        batch, longest = seen.shape
        lengths = seen.sum(1)
        order = torch.argsort(lengths, stable=True)
        runs = tuple((len(list(alike)), length) for length, alike in groupby(lengths[order].tolist()))
        places = torch.arange(batch * longest).reshape(batch, longest)[order][seen[order]]
        positions = torch.cat([torch.arange(length) for length in lengths[order].tolist()])
        (sent,) = uploaded([torch.stack([places, positions])], device)
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
