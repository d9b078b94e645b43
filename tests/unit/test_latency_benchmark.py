"""The table and the picture of success against latency, with and without real-time chunking."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import latency


def record(successes: int) -> dict:
    rate = successes / 10
    return {"successes": successes, "episodes": 10, "success_rate": rate, "ci_low": rate / 2, "ci_high": rate}


def test_what_is_there_is_read_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / latency.REPORT).touch()
    found = {"delay_0_free": 9, "delay_0_continued": 9, "delay_2_free": 3, "delay_2_continued": 8}
    for name, successes in list(found.items())[:-1]:
        (tmp_path / name).mkdir()
        (tmp_path / name / latency.EVALUATIONS).write_text(json.dumps(record(successes)) + "\n")
    asked = []

    def ran(module: str, *words: str) -> None:
        asked.append((module, *words))
        place = Path(words[-1].removeprefix("output_dir="))
        place.mkdir()
        (place / latency.EVALUATIONS).write_text(json.dumps(record(8)) + "\n")

    monkeypatch.setattr(latency, "_run", ran)
    latency.main([str(tmp_path), "--delays", "0", "2", "--executed", "3", "run=debug", "seed=1"])
    ((module, *words),) = asked
    assert module == "rlrun.eval" and "run=debug" not in words
    wanted = {"seed=1", "policy.num_action_chunks=3", "env.action_delay=2"}
    assert wanted | {"evaluation.real_time_chunking.enable=true"} <= set(words)
    printed = capsys.readouterr().out
    assert "| 0 | 9/10 = 90% | 9/10 = 90% |\n| 2 | 3/10 = 30% | 8/10 = 80% |" in printed
    picture = ET.fromstring((tmp_path / "latency.svg").read_text())
    lines = [path for path in picture.iter("{http://www.w3.org/2000/svg}path") if path.get("class") == "line"]
    assert len(lines) == 2
    written = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert set(latency.NAMES.values()) <= set(written)


def test_a_missing_policy_is_trained_with_longer_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(latency, "_run", lambda *words: asked.append(words))
    latency.train(tmp_path, 8, ["num_steps=1"])
    assert asked[0][0] == "rlrun.train"
    assert {"policy=smolvla", "policy.num_action_chunks=8", "num_steps=1"} <= set(asked[0])
