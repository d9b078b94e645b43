"""Work of operators on a GPU, counted on torch's meta device, whose tensors have sizes and no memory."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from rlrun.policies.counts import PassCount

META = torch.device("meta")
aten = torch.ops.aten
# They launch nothing: memory is asked for, or a shape changes. Views are told by their schema.
_NO_KERNEL = {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided}
_NO_KERNEL |= {aten._unsafe_view}
# They read as much of their first input as they return.
_PICKING = {aten.embedding, aten.gather, aten.index, aten.index_select}
# Products with fewer operations per byte are bound by memory: GPUs do 150 to 210 operations in the time of a byte.
_FEW_OPERATIONS = 128
_KNOWN: dict[tuple, _Operation] = {}  # by operator and arguments; the blocks of a network repeat each other


@dataclass(frozen=True)
class _Operation:
    """Work of an operator on tensors of some sizes, remembered since torch takes a millisecond to find it out."""

    made: Any  # its result, with `_Made` in the place of tensors; None: it must run, as its result is no new memory
    num_kernels: int
    flops: int
    num_bytes: int
    thin_bytes: int


@dataclass(frozen=True)
class _Made:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def again(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=META)


class DeviceWork(TorchDispatchMode):
    """Adds up kernels, operations and bytes of what runs inside, and the bytes of tensors that it holds at one time.

    What is computed in host memory, and copies from there, do not count.
    """

    def __init__(self, held: Iterable[Tensor]):
        """held: tensors that are there before, whose memory does not count."""
        super().__init__()
        self.flops = self.num_bytes = self.thin_bytes = self.num_kernels = 0
        self.current_bytes = self.peak_bytes = 0
        self._sizes: dict[int, int] = {}  # by the identity of the storage
        for tensor in held:
            self._see(tensor)
        self.current_bytes = self.peak_bytes = 0

    def count(self, keeps: bool) -> PassCount:
        """Return the counts so far. keeps: whether held memory is part of them."""
        saved = self.peak_bytes if keeps else 0
        return PassCount(self.flops, self.num_bytes, self.num_kernels, saved, self.thin_bytes)

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: tuple = (), named: dict | None = None) -> Any:
        named = named or {}
        if operator.is_view:
            return operator(*arguments, **named)
        parts: list[Any] = [operator]
        is_complete = _describe(arguments, parts) and _describe(list(named.items()), parts)
        key = tuple(parts)
        known = _KNOWN.get(key) if is_complete else None
        made = None if known is None else known.made
        result = operator(*arguments, **named) if made is None else _again(made)
        if known is None:
            known = _operation(operator.overloadpacket, arguments, named, result)
            if is_complete:
                _KNOWN[key] = known
        self.num_kernels += known.num_kernels
        self.flops += known.flops
        self.num_bytes += known.num_bytes
        self.thin_bytes += known.thin_bytes
        for tensor in _tensors(result):
            self._see(tensor)
        return result

    def _see(self, tensor: Tensor) -> None:
        if not tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        key = id(storage)  # torch keeps the object as long as the memory
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.current_bytes += self._sizes[key]
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.current_bytes -= self._sizes.pop(key, 0)


def _describe(value: Any, parts: list[Any]) -> bool:
    """Add all that decides the sizes of a result to `parts`. Returns whether that is possible."""
    if isinstance(value, Tensor):
        parts += (value.shape, value.stride(), value.dtype)
        return value.is_meta
    if isinstance(value, (tuple, list)):
        parts.append(len(value))
        return min((_describe(item, parts) for item in value), default=True)  # `all` would stop early
    parts += (type(value), value)  # 1, 1.0 and True are equal
    return isinstance(value, Hashable)


def _operation(packet: Any, arguments: tuple, named: dict, result: Any) -> _Operation:
    given = [*_tensors(arguments), *_tensors(list(named.values()))]
    made = list(_tensors(result))
    again = _template(result) if _is_new(given, made) else None
    is_on_device = any(tensor.is_meta for tensor in given) or (not given and any(tensor.is_meta for tensor in made))
    if not is_on_device or packet in _NO_KERNEL:
        return _Operation(again, 0, 0, 0, 0)
    read = [_num_bytes(tensor) for tensor in given]
    written = sum(map(_num_bytes, made))
    if packet in flop_registry:
        flops = flop_registry[packet](*arguments, **named, out_val=result)
        moved = sum(read) + written
        return _Operation(again, 1, flops, 0, moved if flops < _FEW_OPERATIONS * moved else 0)
    if packet in _PICKING:
        read[0] = min(read[0], written)
    return _Operation(again, 1, 0, sum(read) + written, 0)


def _is_new(given: list[Tensor], made: list[Tensor]) -> bool:
    """Return whether each tensor of a result has memory of its own, of its own size."""
    storages = [tensor.untyped_storage() for tensor in made if tensor.is_meta]
    places = {id(storage) for storage in storages}
    is_apart = places.isdisjoint(id(tensor.untyped_storage()) for tensor in given)
    sizes = (tensor.element_size() * tensor.numel() for tensor in made)
    return (
        is_apart
        and len(places) == len(made)
        and all(s.nbytes() == size for s, size in zip(storages, sizes, strict=True))
    )


def _template(result: Any) -> Any:
    if isinstance(result, Tensor):
        return _Made(tuple(result.shape), result.stride(), result.dtype)
    return type(result)(map(_template, result)) if isinstance(result, (tuple, list)) else result


def _again(made: Any) -> Any:
    if isinstance(made, _Made):
        return made.again()
    return type(made)(map(_again, made)) if isinstance(made, (tuple, list)) else made


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _num_bytes(tensor: Tensor) -> int:
    """Return the bytes of the numbers of a tensor; of those that it repeats, once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0)
    return tensor.element_size() * math.prod(sizes)


class FusedAttention(TorchFunctionMode):
    """Attends by the kernel that torch chooses on a GPU; for meta tensors it would choose the plain products."""

    def __torch_function__(
        self, function: Callable, types: Any, arguments: tuple = (), named: dict | None = None
    ) -> Any:
        named = named or {}
        if function is F.scaled_dot_product_attention and arguments[0].is_meta:
            return _attend(*arguments, **named)
        return function(*arguments, **named)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Arguments and result as of `F.scaled_dot_product_attention`."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, dim=-3) for x in (key, value))
    if attn_mask is None and query.dtype != torch.float32:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    bias = None
    if attn_mask is not None:
        bias = attn_mask
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, -math.inf)
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
    needs_backward = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs_backward, dropout_p, is_causal, scale=scale
    )[0]
