"""The C heap of a process that computes: freed memory is kept for the next tensors of the same size."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """By default glibc takes large blocks from the kernel and gives them back at once, so that every activation of
    every layer is mapped and zeroed anew. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
