"""Memory that both ends of the pipe see: nameless, so it goes with the last of the two processes."""

from __future__ import annotations

import mmap
import os

import numpy as np

ALIGNMENT = 64


class Arena:
    """One message at a time: one end writes its arrays, the other copies them out before it answers.

    fd: a file descriptor of `memfd_create`, inherited by the other process. The writing end makes it larger
    when a message needs it; the reading end follows.
    """

    def __init__(self, fd: int):
        self.fd = fd
        self._used = 0
        self._map: mmap.mmap | None = None

    @property
    def num_bytes(self) -> int:
        """What is mapped here now."""
        return len(self._map) if self._map is not None else 0

    def reset(self) -> None:
        """The next message may overwrite all."""
        self._used = 0

    def write(self, array: np.ndarray) -> int:
        """Copy a contiguous array in; returns its offset. Grows the memory where needed."""
        offset = -(-self._used // ALIGNMENT) * ALIGNMENT
        self._used = offset + array.nbytes
        if self._used > self.num_bytes:
            self._remap(max(2 * self.num_bytes, self._used), is_growing=True)
        np.frombuffer(self._map, np.uint8, array.nbytes, offset)[:] = array.reshape(-1).view(np.uint8)
        return offset

    def read(self, offset: int, num_bytes: int) -> np.ndarray:
        """A copy, uint8 [num_bytes]. Raises ValueError outside the memory."""
        if offset < 0 or num_bytes < 0:
            raise ValueError(f"negative range {offset}, {num_bytes}")
        if offset + num_bytes > self.num_bytes:
            self._remap(os.fstat(self.fd).st_size, is_growing=False)
        if offset + num_bytes > self.num_bytes:
            raise ValueError(f"bytes {offset} to {offset + num_bytes} lie beyond the shared {self.num_bytes}")
        return np.frombuffer(self._map, np.uint8, num_bytes, offset).copy()

    def _remap(self, num_bytes: int, is_growing: bool) -> None:
        if is_growing:
            os.ftruncate(self.fd, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._map = None  # whoever still views the old map keeps it alive
        size = os.fstat(self.fd).st_size
        self._map = mmap.mmap(self.fd, size) if size else None

    def close(self) -> None:
        """Unmap, and close the descriptor."""
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
