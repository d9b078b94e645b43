"""How much memory tensors hold, counted storage by storage while a program runs: a CPU has no statistics of its own."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):
    """Tracks `current_bytes` and `peak_bytes` of every registered storage and of results of operations inside.

    FSDP empties and fills storages in place, which no operation shows: `resize_` itself is watched.
    """

    def __init__(self, held: Iterable[Tensor] = ()):
        super().__init__()
        self.current_bytes = self.peak_bytes = 0
        self._sizes: dict[int, int] = {}  # by the address of the storage
        for tensor in held:
            self._see(tensor)

    def __enter__(self):
        self._resize = torch.UntypedStorage.resize_
        resize, memory = self._resize, self

        def watched(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            memory._see_storage(storage)
            return result

        torch.UntypedStorage.resize_ = watched
        return super().__enter__()

    def __exit__(self, *raised: object):
        torch.UntypedStorage.resize_ = self._resize
        return super().__exit__(*raised)

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        result = operation(*arguments, **(named or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: Tensor) -> None:
        part = getattr(tensor, "_local_tensor", tensor)
        if part.device.type != "meta":
            self._see_storage(part.untyped_storage())

    def _see_storage(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
        self._count(size - self._sizes.get(key, 0))
        self._sizes[key] = size

    def _forget(self, key: int) -> None:
        self._count(-self._sizes.pop(key, 0))

    def _count(self, change: int) -> None:
        self.current_bytes += change
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
