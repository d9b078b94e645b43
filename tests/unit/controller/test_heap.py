"""What a process keeps of the memory that it freed, and how many heaps it has; measured in processes of their own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's heap")

# The fence keeps glibc from giving back what is below it.
FREED = """
import numpy, psutil
from rlrun.controller import heap
{change}
before = psutil.Process().memory_info().rss
blocks, fence = [numpy.ones(1 << 21, numpy.uint8) for _ in range(20)], bytearray(b"1" * 100_000)
del blocks
print((psutil.Process().memory_info().rss - before) >> 20)
"""
THREADS = """
import threading, psutil
from rlrun.controller import heap
{change}
threading.stack_size(1 << 18)
before, over = psutil.Process().memory_info().vms, threading.Event()
threads = [threading.Thread(target=lambda: (bytearray(10_000), over.wait())) for _ in range(8)]
for thread in threads:
    thread.start()
print((psutil.Process().memory_info().vms - before) >> 20)
over.set()
"""


def told(program: str, change: str) -> int:
    """MiB."""
    program = program.format(change=change)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60).stdout)


def test_learners_keep_large_blocks():
    assert told(FREED, "heap.keep_freed_memory()") >= 30
    assert told(FREED, "") <= 2


def test_threads_of_simulators_share_a_heap():
    assert told(THREADS, "heap.share_one_heap()") <= 16
    assert told(THREADS, "") >= 64  # so much is reserved for a heap
