"""The page that compares runs: groups over seeds, means and bands, pooled intervals, and what differs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rlrun.config import provenance
from rlrun.config.loader import load
from rlrun.edges.reports import EpisodeReport
from rlrun.observability.records import (
    EvaluationRecord,
    read_run,
    record_evaluation,
    summarize_evaluation,
    wilson_interval,
)
from rlrun.observability.report.comparison import comparison_page, run_folders, write_comparison
from rlrun.observability.report.differences import curve, evaluation_curve, group_runs
from rlrun.report import main


def run(folder: Path, seed: int, lr: float, rates: list[float], successes: int | None = None) -> Path:
    """A run folder with success rates of its steps, and an evaluation of 10 episodes after the last."""
    where = [f"name=lr{lr}-{seed}", f"output_dir={folder}", f"cache_dir={folder}/cache"]
    config = load(["run=cartpole", f"seed={seed}", f"actor.lr={lr}", *where])
    provenance.write(config, folder)
    lines = [{"step": step, "success_rate": rate} for step, rate in enumerate(rates, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if successes is not None:
        low, high = wilson_interval(successes, 10)
        last = EvaluationRecord(len(rates), successes, 10, successes / 10, low, high, 0.5, mean_return=1.0)
        (folder / "evaluations.jsonl").write_text(json.dumps(asdict(last)) + "\n")
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [
        run(tmp_path / "a0", 0, 1e-3, [0.1, 0.2], 4),
        run(tmp_path / "a1", 1, 1e-3, [0.3, 0.6], 8),
        run(tmp_path / "b0", 0, 2e-3, [0.5]),
    ]


def test_runs_that_differ_in_the_seed_are_one_group(folders: list[Path]) -> None:
    groups = group_runs([read_run(folder) for folder in folders])
    assert [(group.settings, len(group.runs)) for group in groups] == [
        ({"actor.lr": "0.001"}, 2),
        ({"actor.lr": "0.002"}, 1),
    ]
    assert groups[0].success == (0.6, *wilson_interval(12, 20)) and groups[1].success is None


def test_curves_are_means_with_bands(folders: list[Path]) -> None:
    group, other = group_runs([read_run(folder) for folder in folders])
    found = curve("success_rate", group, 3)
    assert found is not None
    line, band = found
    assert line.steps == [1, 2] and line.values == pytest.approx([0.2, 0.4])
    assert (band.low, band.high, band.colour) == ([0.1, 0.2], [0.3, 0.6], 3)
    measured = evaluation_curve(group, 1)
    assert measured is not None and measured[0].values == pytest.approx([0.6]) and measured[1].low == [0.4]
    assert evaluation_curve(other, 1) is None and curve("entropy", group, 1) is None


def test_the_page_is_whole(folders: list[Path], tmp_path: Path) -> None:
    (folders[0] / "report.html").write_text("")
    page = comparison_page([read_run(folder) for folder in folders], tmp_path)
    assert "3 runs compared" in page and 'href="a0/report.html"' in page and "not evaluated yet" in page
    assert "<code>actor.lr</code>" in page and "http" not in page.replace("http-equiv", "")
    body = page[page.index("<main>") : page.index("</main>") + len("</main>")]
    for part in ("class=num", "colspan=6"):
        name, _, value = part.partition("=")
        body = body.replace(part, f'{name}="{value}"')
    assert len(list(ElementTree.fromstring(body).iter("polygon"))) == 2, "bands of success, evaluated and exploring"


def test_the_command_takes_runs_and_folders_of_runs(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_folders([tmp_path]) == folders == run_folders([*folders, tmp_path])
    assert main([str(tmp_path)]) == 0 and capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert main([str(folders[0])]) == 0 and "lr0.001-0" in (folders[0] / "report.html").read_text()
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 5 and "no run directory" in capsys.readouterr().err
    assert write_comparison(folders[:2], tmp_path / "new" / "c.html").read_text().count("actor.lr") == 0


def evaluated(folder: Path, lr: float, successes: int, of: int = 64, step: int = 1) -> Path:
    """A run folder whose last evaluation succeeds on the first `successes` seeds."""
    run(folder, 0, lr, [0.5])
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": step}) + "\n")
    reports = [EpisodeReport(0, seed, seed < successes, 0.0, 1.0, 5, True, False, False, "go") for seed in range(of)]
    record_evaluation(folder, summarize_evaluation(step, reports))
    return folder


def test_two_checkpoints_are_compared_by_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clear = [evaluated(tmp_path / "a", 1e-3, 20), evaluated(tmp_path / "b", 2e-3, 40)]
    assert main([*map(str, clear), "--output", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().out
    assert "B less A: +31 % (+19 to +42 %), 95 % interval; 64 pairs of equal seeds" in told
    assert "<b>62 %</b>" in (tmp_path / "page.html").read_text()


def test_runs_that_have_not_come_equally_far_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [evaluated(tmp_path / "a", 1e-3, 20, step=200), evaluated(tmp_path / "b", 2e-3, 40, step=160)]
    assert main([*map(str, runs), "--output", str(tmp_path / "page.html")]) == 0
    assert "1.9e-06; evaluated after step 200 and 160\n" in capsys.readouterr().out
    assert "<td class=num>160</td>" in (tmp_path / "page.html").read_text()


def test_only_a_clear_winner_is_bold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near = [evaluated(tmp_path / "a", 1e-3, 30), evaluated(tmp_path / "b", 2e-3, 32)]
    assert main([*map(str, near), "--output", str(tmp_path / "page.html")]) == 0
    assert "no clear difference" in capsys.readouterr().out
    assert "<b>" not in (tmp_path / "page.html").read_text().split("<h2>Curves")[0]


def test_equal_configurations_are_told_by_their_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = [evaluated(tmp_path / "a", 1e-3, 20), evaluated(tmp_path / "b", 1e-3, 40)]
    assert main([*map(str, same), "--output", str(tmp_path / "page.html")]) == 0
    assert f"B folder {tmp_path / 'b'}" in capsys.readouterr().out


def test_terms_of_own_rewards_and_numbers_of_the_world_are_compared(folders: list[Path], tmp_path: Path) -> None:
    without = comparison_page([read_run(folder) for folder in folders], tmp_path)
    assert "numbers of the world" not in without
    lines = [{"step": step, "success_rate": 0.5, "reward/near": 0.1 * step, "info/<speed>": 2.0} for step in (1, 2)]
    (folders[0] / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = comparison_page([read_run(folder) for folder in folders], tmp_path)
    section = page.split("Own rewards, numbers of the world")[1].split("What differs")[0]
    assert "<h3>reward/near</h3>" in section and "<h3>info/&lt;speed&gt;</h3>" in section
    assert section.count('class="line"') == 2
