"""Figures of docs/performance.md that do not depend on the machine are those that their command prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PRINTED = {
    "files of rlrun that one PPO step enters": r"files besides [^:]*: (\d+)",
    "lines of their functions that run": r"of which ran: ([\d,]+)",
    "hops from the training loop": r"hops of update: (\d+)[\s\S]*hops of save: (\d+)",
}


def documented(row: str) -> list[str]:
    """Return the values of a row: its third column."""
    lines = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith(f"| {row}"))
    return line.split("|")[3].strip().split("; ")


def test_the_path_of_a_step_is_as_documented():
    command = [sys.executable, "-m", "benchmarks.step_path"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    for row, pattern in PRINTED.items():
        found = re.search(pattern, done.stdout)
        assert found is not None and documented(row) == list(found.groups()), row
