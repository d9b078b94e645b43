"""Pins memory that this process has mapped already, so that its accelerator copies it several times as fast."""

from __future__ import annotations

import contextlib
import logging

import numpy as np
import torch

logger = logging.getLogger(__name__)


def pin(memory: np.ndarray) -> bool:
    """Register `memory` with CUDA, once for all copies. Returns False if this process uses no CUDA, or on a failure.

    Without it copies take longer and are equally right. Call `unpin` before the memory is unmapped.
    """
    if not (torch.backends.cuda.is_built() and torch.cuda.is_initialized()):
        return False
    error = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
    if error:
        with contextlib.suppress(RuntimeError):  # CUDA keeps the error, and the next kernel would report it as its own
            torch.zeros(1, device="cuda")
        logger.warning(
            "%.1f GB of shared memory could not be pinned (CUDA error %d), so weight sync copies it more slowly; "
            "look at `ulimit -l` and at the free memory of this node",
            memory.nbytes / 1e9,
            error,
        )
    return not error


def unpin(memory: np.ndarray) -> None:
    """Undo a `pin` that returned True."""
    torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)
