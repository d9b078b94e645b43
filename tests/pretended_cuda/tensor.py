"""A tensor that says it is on cuda:0 and computes on the CPU, and the mode in which tensors are made on that device.

It follows CUDA's rules: an operator takes tensors of one device only, a CPU tensor without dimensions apart; a tensor
that is on the device has no NumPy array; values reach the host by copies and waits, which are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.pretended_cuda.events import EVENTS, Kind

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten

# The host needs a value, or a size that depends on values.
WAITING = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten.equal,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.repeat_interleave,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
COPYING = {aten.copy_, aten._to_copy}


class PretendedTensor(torch.Tensor):
    """A tensor on cuda:0 whose values are in `values`, a CPU tensor."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> PretendedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=CUDA,
        )
        made.values = values
        return made

    def __repr__(self, **_: Any) -> str:
        return f"PretendedTensor({self.values!r})"

    def tolist(self) -> Any:
        EVENTS.add(Kind.wait, "tolist")
        return self.values.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the CPU's storage, so that FSDP frees and refills real memory."""
        return self.values.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented if _has_foreign(types) else _dispatch(func, args, kwargs or {})


class PretendedCuda(TorchDispatchMode):
    """Makes tensors on the pretended device where `device="cuda"` is asked for, in this thread."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, FakeTensor) for kind in types):  # by which a DTensor of the CPU finds out shapes
            return func(*args, **(kwargs or {}))
        return NotImplemented if _has_foreign(types) else _dispatch(func, args, kwargs or {})


def values_of(tensor: Any) -> Any:
    """Return the CPU tensor of a pretended one; anything else as it is."""
    return tensor.values if isinstance(tensor, PretendedTensor) else tensor


def _has_foreign(types: tuple[type, ...]) -> bool:
    """A DTensor calls the operator again with its local tensors."""
    return not all(issubclass(kind, PretendedTensor) or kind in (torch.Tensor, torch.nn.Parameter) for kind in types)


def _is_cuda(device: Any) -> bool:
    return torch.device(device).type == "cuda"


def _dispatch(func: Any, args: tuple, kwargs: dict) -> Any:
    if _is_composite(func):  # its parts come here one by one
        with PretendedCuda():
            return func.decompose(*args, **kwargs)
    operator = func.overloadpacket
    if operator is aten._pin_memory:
        return args[0].clone()
    if operator is aten.is_pinned:
        return False
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    asked = kwargs.get("device")
    is_on_device = any(isinstance(tensor, PretendedTensor) for tensor in given)
    makes_on_device = is_on_device if asked is None else _is_cuda(asked)
    _observe(func, args, kwargs, given, makes_on_device)
    cpu_args, cpu_kwargs = tree_map(values_of, args), tree_map(values_of, kwargs)
    if asked is not None and _is_cuda(asked):
        cpu_kwargs["device"] = CPU
    is_pinned = bool(cpu_kwargs.pop("pin_memory", False))
    result = func(*cpu_args, **cpu_kwargs)
    if is_pinned:
        result.is_pinned_here = True  # its views do not say so
    written = {id(values_of(tensor)): tensor for tensor in given if isinstance(tensor, PretendedTensor)}

    def wrapped(made: Any) -> Any:
        if not isinstance(made, torch.Tensor):
            return made
        if id(made) in written:  # an operator in place returns its argument
            return written[id(made)]
        return PretendedTensor(made) if makes_on_device else made

    return tree_map(wrapped, result)


def _observe(func: Any, args: tuple, kwargs: dict, given: list[torch.Tensor], makes_on_device: bool) -> None:
    """Count what the operator copies and waits for. Raises RuntimeError if it mixes devices."""
    operator, name = func.overloadpacket, str(func.overloadpacket)
    is_on_device = [isinstance(tensor, PretendedTensor) for tensor in given]
    if operator in COPYING:
        source = args[1] if operator is aten.copy_ else args[0]
        makes_on_device = isinstance(args[0], PretendedTensor) if operator is aten.copy_ else makes_on_device
        if isinstance(source, PretendedTensor) != makes_on_device:
            is_sent = kwargs.get("non_blocking") and getattr(source, "is_pinned_here", False)
            upload = Kind.send if is_sent else Kind.upload
            EVENTS.add(upload if makes_on_device else Kind.download, name)
        return
    if operator in INDEXING:
        indices = [index for index in args[1] if index is not None]
        is_target_on_device = isinstance(args[0], PretendedTensor)
        if is_target_on_device:
            for index in indices:
                if not isinstance(index, PretendedTensor):
                    EVENTS.add(Kind.upload, f"{name} by an index of the host")
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                EVENTS.add(Kind.wait, f"{name} by a mask")
        given = [args[0], *(tensor for tensor in args[2:3] if isinstance(tensor, torch.Tensor))]
        given += [] if is_target_on_device else [index for index in indices if isinstance(index, PretendedTensor)]
    elif any(is_on_device) and operator in WAITING and kwargs.get("output_size") is None:
        EVENTS.add(Kind.wait, name)
    _require_one_device(name, given)


def _require_one_device(name: str, given: list[torch.Tensor]) -> None:
    on_host = [tuple(tensor.shape) for tensor in given if not isinstance(tensor, PretendedTensor) and tensor.dim()]
    if on_host and any(isinstance(tensor, PretendedTensor) for tensor in given):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({name}: {on_host} are on the CPU)"
        )


@cache
def _is_composite(func: Callable) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
