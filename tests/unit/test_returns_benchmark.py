"""Mean returns of training episodes beside control steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import returns


def line(env_steps: float, num_episodes: float, episode_return: float | None) -> dict:
    return {"env_steps": env_steps, "num_episodes": num_episodes, "episode_return": episode_return}


def test_episodes_count_at_the_nearest_row_each_alike() -> None:
    metrics = [line(960, 1, 10.0), line(1040, 3, 30.0), line(1500, 0, None), line(3010, 2, -5.0)]
    assert returns.returns(metrics, 1000) == {1: 25.0, 3: -5.0}


def test_the_table_has_a_column_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, metrics in (("a", [line(1000, 1, 1000.0)]), ("b", [line(1000, 1, 2000.0), line(2000, 1, 7.0)])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in metrics))
    monkeypatch.setattr(sys, "argv", ["returns", str(tmp_path / "a"), str(tmp_path / "b"), "--every", "1000"])
    assert returns.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        "| control steps | a | b | mean |",
        "|---|---|---|---|",
        "| 1,000 | 1,000 | 2,000 | 1,500 |",
        "| 2,000 |  | 7 | 7 |",
    ]


def test_a_folder_without_metrics_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["returns", str(tmp_path)])
    assert returns.main() == 2 and str(tmp_path) in capsys.readouterr().err
