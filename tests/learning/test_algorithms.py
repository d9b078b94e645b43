"""Every algorithm learns: a small network reaches targets in the quick world, from less than a fifth of its starts to
most. docs/learning.md has the table of all policies by all algorithms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learning.cells import CELLS, WORLD
from rlrun.config.loader import load
from rlrun.train import train

pytestmark = [pytest.mark.order_of_sums, pytest.mark.learning, pytest.mark.timeout(900)]

AT_FIRST, AT_LAST = 0.2, 0.7  # success; seen: 0.07 or 0.08, then 0.91 to 0.97


@pytest.mark.parametrize(
    ("title", "num_steps"),
    [
        ("mlp by PPO", 25),
        ("mlp by GRPO", 20),
        ("mlp by RLOO", 20),
        ("mlp by REINFORCE++", 20),
        pytest.param("mlp, squashed by SAC", 40, marks=pytest.mark.long),
        pytest.param("mlp, squashed by RLPD", 40, marks=pytest.mark.long),
    ],
)
def test_success_rises(tmp_path, title, num_steps) -> None:
    first, *_, last = evaluations(tmp_path, title, num_steps)
    assert first["success_rate"] < AT_FIRST
    assert last["success_rate"] > AT_LAST


def evaluations(folder: Path, title: str, num_steps: int, *overrides: str) -> list[dict]:
    """Train a cell of the table for fewer steps, and return its evaluations."""
    cell = next(cell for cell in CELLS if cell.title == title)
    keys = [f"num_steps={num_steps}", "evaluation.every_steps=1000", f"output_dir={folder}/run"]
    config = load([*WORLD[2:], *cell.keys, *keys, f"cache_dir={folder}/cache", *overrides], config_dir=WORLD[1])
    assert train(config) == 0
    return [json.loads(line) for line in (folder / "run/evaluations.jsonl").read_text().splitlines()]
