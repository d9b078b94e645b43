"""The C heap of a worker: whether freed memory is kept for what comes next. Other C libraries are left as they are."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_KEPT_BYTES = 1 << 30
_LARGE_BYTES = 1 << 20


def keep_freed_memory() -> None:
    """Where a policy computes: by default glibc takes large blocks from the kernel and gives them back at once, so that
    every activation of every layer is mapped and zeroed anew.
    """
    _set(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    _set(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def return_large_blocks() -> None:
    """Where simulators run, many to a node: by default glibc takes each large block that is freed for a reason to keep
    the next ones of its size, and what lies between them, and trajectories are made and sent once a step.
    """
    _set(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _set(option: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)
