"""Shared memory of both ends of the pipe. It has no name, so the kernel frees it when both processes have ended."""

from __future__ import annotations

import mmap
import os

import numpy as np

ALIGNMENT = 64


class Arena:
    """Holds the arrays of one message: one end writes them, the other copies them before it answers.

    fd: a file descriptor of `memfd_create`, inherited by the other process. The writing end enlarges the memory
    if a message needs it; the reading end remaps it.
    """

    def __init__(self, fd: int):
        self.fd = fd
        self._used = 0
        self._map: mmap.mmap | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the current mapping in this process."""
        return len(self._map) if self._map is not None else 0

    def reset(self) -> None:
        """Allow the next message to overwrite all arrays."""
        self._used = 0

    def write(self, array: np.ndarray) -> int:
        """Copy a contiguous array into the memory. Returns its offset. Enlarges the memory if needed."""
        offset = -(-self._used // ALIGNMENT) * ALIGNMENT
        self._used = offset + array.nbytes
        if self._used > self.num_bytes:
            self._remap(max(2 * self.num_bytes, self._used), is_growing=True)
        self._bytes(offset, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        return offset

    def read(self, offset: int, num_bytes: int) -> np.ndarray:
        """Return a copy, uint8 [num_bytes]. Raises ValueError for a range outside the memory."""
        if offset < 0 or num_bytes < 0:
            raise ValueError(f"negative range {offset}, {num_bytes}")
        if offset + num_bytes > self.num_bytes:
            self._remap(os.fstat(self.fd).st_size, is_growing=False)
        if offset + num_bytes > self.num_bytes:
            raise ValueError(f"bytes {offset} to {offset + num_bytes} exceed the {self.num_bytes} shared bytes")
        return self._bytes(offset, num_bytes).copy()

    def _bytes(self, offset: int, num_bytes: int) -> np.ndarray:
        """Return a view of the mapped bytes."""
        mapped = b"" if self._map is None else self._map  # an empty file cannot be mapped
        return np.frombuffer(mapped, np.uint8, num_bytes, offset)

    def _remap(self, num_bytes: int, is_growing: bool) -> None:
        if is_growing:
            os.ftruncate(self.fd, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._map = None  # arrays that view the old mapping keep it alive
        size = os.fstat(self.fd).st_size
        self._map = mmap.mmap(self.fd, size) if size else None

    def close(self) -> None:
        """Unmap the memory and close the descriptor."""
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
