"""What a process keeps of the memory that it freed, measured in processes of their own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's heap")

# The first block that is freed changes what glibc does by default; the fence keeps it from giving back what is below.
PROGRAM = """
import numpy, psutil
from rlrun.cluster.heap import {function}
{function}()
first = numpy.ones(1 << 22, numpy.uint8)
del first
before = psutil.Process().memory_info().rss
blocks, fence = [numpy.ones(1 << 21, numpy.uint8) for _ in range(20)], bytearray(b"1" * 100_000)
del blocks
print((psutil.Process().memory_info().rss - before) >> 20)
"""


def kept_mib(function: str) -> int:
    """Of 40 MiB, freed."""
    program = PROGRAM.format(function=function)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60).stdout)


def test_learners_keep_large_blocks_and_simulators_do_not():
    assert kept_mib("keep_freed_memory") >= 30
    assert kept_mib("return_large_blocks") <= 2
