"""The benchmarks that start whole programs, with runs of seconds: they still find all that they compare."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
NUMBER = r"(\d+\.\d+)"


def printed(module: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_loop_tells_floor_over_wall(tmp_path: Path) -> None:
    text = printed("benchmarks.loop", "rounds=1", "run=debug", f"cache_dir={tmp_path}")
    ratios = dict(re.findall(rf"floor/wall, (\w+) +{NUMBER}", text))
    assert set(ratios) == {"train", "train_async", "collecting"}
    assert all(float(ratio) > 0 for ratio in ratios.values()), text


def test_asynchronous_compares_both_programs_and_reads_what_is_there(tmp_path: Path) -> None:
    words = (str(tmp_path), "seeds=1", "run=debug", "num_steps=3")
    text = printed("benchmarks.asynchronous", *words)
    ages = {name: float(age) for name, age in re.findall(rf"0 \| rlrun\.(\w+) \| 3 \| \S+ \| {NUMBER} ", text)}
    assert ages.keys() == {"train", "train_async"} and ages["train"] == 0 < ages["train_async"] <= 1, text
    written = (tmp_path / "0" / "train" / "metrics.jsonl").stat().st_mtime_ns
    assert printed("benchmarks.asynchronous", *words) == text
    assert (tmp_path / "0" / "train" / "metrics.jsonl").stat().st_mtime_ns == written
