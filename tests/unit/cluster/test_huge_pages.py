"""The variable by which torch puts large tensors on huge pages has its effect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.placement.inventory import Inventory, NodeInfo
from rlrun.placement.planner import plan

STATE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
NUM_BYTES = 1 << 25
TELL = f"""
import torch
kept = torch.ones({NUM_BYTES}, dtype=torch.uint8)
print(open("/proc/self/smaps_rollup").read())
"""


def on_huge_pages(environment: dict[str, str]) -> int:
    """Bytes, of a process that holds one tensor of NUM_BYTES."""
    inherited = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    told = subprocess.run(
        [sys.executable, "-c", TELL], env=inherited | environment, capture_output=True, text=True, check=True
    )
    return 1024 * int(re.search(r"AnonHugePages:\s+(\d+) kB", told.stdout)[1])


@pytest.mark.skipif(
    not STATE.exists() or "[madvise]" not in STATE.read_text(), reason="this machine gives no huge pages for the asking"
)
def test_large_tensors_of_a_planned_worker_lie_on_huge_pages() -> None:
    planned = plan(load([]), Inventory((NodeInfo("n", "", 8, 1 << 36, ()),)))
    assert on_huge_pages(planned.environment("actor", 0)) > NUM_BYTES / 2 > on_huge_pages({})
