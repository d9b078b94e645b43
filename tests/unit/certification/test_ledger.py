"""Every test of a run's policies counts on the next card, with its temperature, rule and outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.certification import ledger
from rlrun.certification.card import counted
from rlrun.certification.history import History
from rlrun.config.sealed import write_sealed
from rlrun.observability.records import RunRecord
from tests.unit.certification.test_card import OUTCOMES, content


@pytest.fixture
def history(tmp_path: Path) -> History:
    (tmp_path / "run").mkdir()
    return History(tmp_path / "run", 40, RunRecord(tmp_path / "run"))


def rule(temperature: float, second: int) -> dict:
    fixed_at = f"2026-11-28T00:00:{second:02d}+00:00"
    return {"num_episodes": 40, "half_width": None, "temperature": temperature, "fixed_at": fixed_at}


def certified(history: History, temperature: float, second: int) -> Path:
    """Write a test of the policy to the ledger, and its card. Returns the card."""
    card = history.folder.parent / f"card_of_{second}" / "card.json"
    card.parent.mkdir()
    found = content(OUTCOMES) | {"rule": rule(temperature, second)}
    found["training"]["run"] = str(history.folder)
    ledger.begin(history, found["rule"], card)
    ledger.end(history, found["rule"], card, counted(found["episodes"]))
    write_sealed(found, card)
    return card


def test_tests_of_the_same_step_at_other_temperatures_count(history, tmp_path):
    certified(history, 0.0, 1)
    certified(history, 1.0, 2)
    ledger.begin(history, rule(0.3, 3), tmp_path / "cut_off" / "card.json")
    found = ledger.earlier_tests(history, tmp_path / "new")
    assert [one["temperature"] for one in found] == ["0", "1", "0.3"]
    assert [one["outcome"] for one in found] == ["36/40 = 90 %", "36/40 = 90 %", ledger.INTERRUPTED]
    assert {one["rule"] for one in found} == {"40 episodes"}


def test_a_card_whose_line_the_ledger_has_lost_counts(history, tmp_path):
    certified(history, 0.0, 1)
    certified(history, 1.0, 2)
    file = history.folder / "certifications.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]))
    lost = ledger.earlier_tests(history, tmp_path / "new")[1]
    assert lost["temperature"] == "1" and "has lost" in lost["outcome"]
    file.unlink()
    assert len(ledger.earlier_tests(history, tmp_path / "new")) == 2


def test_a_folder_behind_a_link_has_each_test_once(history, tmp_path):
    certified(history, 0.0, 1)
    link = tmp_path / "link"
    link.symlink_to(history.folder.parent)
    file = history.folder / "certifications.jsonl"
    file.write_text(file.read_text().replace(str(history.folder.parent), str(link)))
    (found,) = ledger.earlier_tests(history, tmp_path / "new")
    assert "lost" not in found["outcome"]


def test_a_damaged_line_counts_as_a_test(history, tmp_path):
    (history.folder / "certifications.jsonl").write_text('{"step": 40, "ca\n')
    (found,) = ledger.earlier_tests(history, tmp_path / "new")
    assert "damaged" in found["outcome"]


def test_an_earlier_card_in_the_same_folder_is_kept_and_counts_once(history):
    card = certified(history, 0.0, 1)
    kept = ledger.keep_earlier(card.parent, ("card.json", "rule.json"))
    assert kept == card.with_name("card_1.json") and kept.is_file() and not card.exists()
    assert len(ledger.earlier_tests(history, card.parent)) == 1
