"""Every algorithm learns: a small network reaches targets in the quick world, from less than a fifth of its starts to
most. docs/learning.md has the table of all policies by all algorithms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from benchmarks.learning.cells import CELLS, WORLD
from rlrun.algorithms.nft import Nft
from rlrun.config.loader import load
from rlrun.train import train

pytestmark = [pytest.mark.order_of_sums, pytest.mark.learning, pytest.mark.timeout(900)]

AT_FIRST, AT_LAST = 0.2, 0.7  # success; seen: 0.07 or 0.08, then 0.91 to 0.97
SHIFT = 0.1  # below the mean; as in the loss of the first version, it made the error grow a thousandfold
GROWN = 2.0  # times the first error


@pytest.mark.parametrize(
    ("title", "num_steps"),
    [
        pytest.param("mlp by PPO", 25, marks=pytest.mark.long),
        ("mlp by GRPO", 20),
        pytest.param("mlp by RLOO", 20, marks=pytest.mark.long),
        pytest.param("mlp by REINFORCE++", 20, marks=pytest.mark.long),
        pytest.param("mlp, squashed by SAC", 40, marks=pytest.mark.long),
        pytest.param("mlp, squashed by RLPD", 40, marks=pytest.mark.long),
    ],
)
def test_success_rises(tmp_path, title, num_steps) -> None:
    first, *_, last = evaluations(tmp_path, title, num_steps)
    assert first["success_rate"] < AT_FIRST
    assert last["success_rate"] > AT_LAST


@pytest.mark.long
def test_nft_stays_up_if_a_constant_is_taken_from_all_advantages(tmp_path, monkeypatch) -> None:
    sound = Nft.advantages

    def shifted(self, steps, reduce):
        found = sound(self, steps, reduce)
        return replace(found, advantages=found.advantages - SHIFT)

    monkeypatch.setattr(Nft, "advantages", shifted)
    first, *_, last = evaluations(tmp_path, "SmolVLA, NFT by NFT", 30, "evaluation.num_episodes=128")
    assert last["success_rate"] > first["success_rate"]
    errors = [json.loads(line)["own_flow_error"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert median(errors[-5:]) < GROWN * median(errors[:5])


def evaluations(folder: Path, title: str, num_steps: int, *overrides: str) -> list[dict]:
    """Train a cell of the table for fewer steps, and return its evaluations."""
    cell = next(cell for cell in CELLS if cell.title == title)
    keys = [f"num_steps={num_steps}", "evaluation.every_steps=1000", f"output_dir={folder}/run"]
    config = load([*WORLD[2:], *cell.keys, *keys, f"cache_dir={folder}/cache", *overrides], config_dir=WORLD[1])
    assert train(config) == 0
    notes = [json.loads(line) for line in (folder / "run/notes.jsonl").read_text().splitlines()]
    assert not [note for note in notes if "alert" in note], "a healthy run is warned of nothing"
    return [json.loads(line) for line in (folder / "run/evaluations.jsonl").read_text().splitlines()]
