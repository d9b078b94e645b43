"""The C heap of a worker: who shares it, and whether freed memory is kept. Other C libraries are left as they are."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Where a policy computes: by default glibc takes large blocks from the kernel and gives them back at once, so that
    every activation of every layer is mapped and zeroed anew.
    """
    _set(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    _set(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def share_one_heap() -> None:
    """Where simulators run, many to a node: by default glibc gives threads heaps of their own, up to eight for each
    core, and what was freed in one of them is of no use to the others.
    """
    _set(_M_ARENA_MAX, 1)


def _set(option: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)
