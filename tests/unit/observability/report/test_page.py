"""The report is self-contained, shows the contents of the files, and copes with missing ones."""

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.schema import RunConfig
from rlrun.edges.reports import EpisodeReport, WorkerLoss
from rlrun.observability.metrics import MetricSinks
from rlrun.observability.records import record_episodes, record_evaluation, record_losses, summarize_evaluation
from rlrun.observability.report.charts import Axis, Mark, Series, line_chart, ticks
from rlrun.observability.timeline import TimelineWriter
from rlrun.report import main, write_report
from rlrun.system.errors import ExitStatus
from rlrun.system.status import Span

VOID = {"meta", "br", "circle", "line", "path", "rect", "polygon"}


class Balance(HTMLParser):
    """Raises when tags do not nest; keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open):
            self.words.append(data)


def read(page: str) -> str:
    balance = Balance()
    balance.feed(page)
    balance.close()
    assert balance.open == []
    return " ".join(balance.words)


@pytest.fixture
def run_dir(tmp_path: Path, config: RunConfig, episode: Callable[..., EpisodeReport]) -> Path:
    """Twelve steps of a run."""
    config.logging.tensorboard = False
    sinks = MetricSinks(tmp_path, config)
    for step in range(1, 13):
        kl = math.nan if step == 5 else 0.01
        metrics = {"success_rate": step / 16, "approx_kl": kl, "collect_s": 3.0, "update_s": 1.0, "step_s": 5.0}
        sinks.log(step, metrics | {"num_infra_faults": float(step == 9), "my_own/metric": 1.0, "busy_env": 0.6})
    sinks.video(12, "evaluation", np.zeros((4, 32, 32, 3), np.uint8), fps=4)
    sinks.close()
    record_episodes(tmp_path, 9, [episode(infra_fault=True, seed=123_456)])
    record_losses(tmp_path, 10, [WorkerLoss("rollout/7", "rollout/7.act: its process ended", 0)])
    record_evaluation(tmp_path, summarize_evaluation(0, [episode(i < 16) for i in range(64)]))
    record_evaluation(tmp_path, summarize_evaluation(12, [episode(i < 60) for i in range(64)]))
    timeline = TimelineWriter(tmp_path / "timeline.json")
    timeline.add("env/0", [Span("simulate", 100.0, 106.0)])
    timeline.add("actor/0", [Span("update", 106.0, 110.0)])
    timeline.close()
    (tmp_path / "config.yaml").write_text("name: <radio> & co\nnum_steps: 20\n")
    (tmp_path / "config_diff.yaml").write_text("env:\n  num_envs: 32\n")
    (tmp_path / "provenance.json").write_text(json.dumps({"commit": "abc123", "packages": {"torch": "2.13.0"}}))
    gpu = {"model": "A100", "memory_bytes": 8e10, "has_rt_cores": False}
    node = {"name": "train-0", "num_cpus": 96, "memory_bytes": 10**12, "accelerators": [gpu, gpu]}
    slot = {"role": "actor", "rank": 0, "node": "train-0", "accelerators": [0], "why": "one rank per GPU"}
    env = {"role": "env", "rank": 0, "node": "sim-0", "accelerators": [], "why": "cores"}
    (tmp_path / "plan.json").write_text(json.dumps({"nodes": [{"node": node}], "slots": [slot, env]}))
    return tmp_path


def test_all_data_of_a_run_is_shown(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run_dir)]) == ExitStatus.ok
    assert capsys.readouterr().out.strip() == str(run_dir / "report.html")
    page = (run_dir / "report.html").read_text()
    words = read(page)
    for expected in (
        "25 %", "94 %", "16/64 episodes", "do not overlap", "12 of 20", "<radio> & co", "num_envs: 32", "abc123",
        "2.13.0", "train-0", "actor/0", "free", "A100, 96 cores", "sim-0", "CPU", "1 episode was void", "123456",
        "1 worker replaced", "rollout/7.act: its process ended",
        "my_own/metric", "busy 6.0 s of 10.0 s", "busy 4.0 s of 10.0 s", "evaluation, after step 12",
    ):  # fmt: skip
        assert expected in words, expected
    assert "data:video/mp4;base64," in page
    assert 'title="one rank per GPU"' in page
    assert "step 3\napprox_kl: 0.01" in page
    assert "step 5\napprox_kl" not in page  # nan is a gap


def test_the_curves_are_those_of_the_algorithm(run_dir: Path) -> None:
    """DSRL logs no ratios; PPO has no critics of actions."""
    main([str(run_dir)])
    assert "Loss of the critics" not in read((run_dir / "report.html").read_text())
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "success_rate": 0.5, "critic_loss": 0.02}\n')
    main([str(run_dir)])
    words = read((run_dir / "report.html").read_text())
    assert "Loss of the critics" in words
    assert "Approximate KL" not in words


def test_the_page_needs_no_network_and_no_script(run_dir: Path) -> None:
    main([str(run_dir)])
    page = (run_dir / "report.html").read_text()
    assert not re.findall(r"https?://|<script|<link|@import|url\(", page)


def test_an_empty_run_is_described_without_an_error(tmp_path: Path) -> None:
    write_report(tmp_path)
    words = read((tmp_path / "report.html").read_text())
    for missing in ("No result yet", "No video", "success_rate was not logged", "No timeline", "plan.json is missing",
                    "config_diff.yaml is missing", "provenance.json is missing"):  # fmt: skip
        assert missing in words, missing


def test_damaged_files_are_named(run_dir: Path) -> None:
    (run_dir / "plan.json").write_text('{"slots": [')
    (run_dir / "provenance.json").write_text("[]")
    (run_dir / "timeline.json").write_text("[")
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "success_rate": 0.5}\n{"step": 2, "succ')
    main([str(run_dir)])
    words = read((run_dir / "report.html").read_text())
    assert "plan.json: Expecting value" in words
    assert "provenance.json: holds a list" in words
    assert "1 of 20" in words
    (run_dir / "plan.json").write_text('{"slots": [{"rank": 0}]}')
    main([str(run_dir)])
    assert "plan.json is of an unknown form" in read((run_dir / "report.html").read_text())


def test_a_missing_folder_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == ExitStatus.bad_input
    assert "nowhere is no run directory" in capsys.readouterr().err


def test_more_videos_than_fit_are_listed(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = (run_dir / "videos" / "evaluation-step-000012.mp4").read_bytes()
    for step in range(20):
        (run_dir / "videos" / f"film-step-{step:06d}.mp4").write_bytes(video)
    main([str(run_dir)])
    page = (run_dir / "report.html").read_text()
    assert page.count("data:video/mp4") == 6
    assert "Not embedded" in page
    monkeypatch.setattr("rlrun.observability.report.page.MAX_VIDEO_BYTES", 2 * len(video))
    main([str(run_dir)])
    assert (run_dir / "report.html").read_text().count("data:video/mp4") == 2


def test_short_phases_share_a_colour_of_their_own(run_dir: Path) -> None:
    timeline = TimelineWriter(run_dir / "timeline.json")
    timeline.add("driver/0", [Span(f"phase {i}", 100.0 + i**2, 100.0 + (i + 1) ** 2) for i in range(12)])
    timeline.close()
    main([str(run_dir)])
    page = (run_dir / "report.html").read_text()
    bar = page[page.index(">driver/0</span>") :]
    bar = bar[: bar.index("</div>")]
    colours = dict(re.findall(r'background:(var[^"]*)" title="driver/0 ([^:]*):', bar))
    assert len(colours) == bar.count("<i ") and colours["var(--soft)"] == "other work"
    assert "phase 11" in colours.values() and "phase 0" not in colours.values()


def test_lines_lie_where_their_values_are() -> None:
    chart = line_chart([Series("x", [0, 10], [0.0, 1.0])], Axis(0.0, 1.0), [Mark(5, 0.5, 0.4, 0.6, "half")])
    (path,) = re.findall(r'class="line"[^>]* d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', chart)
    left, bottom, right, top = map(float, path)
    (mark,) = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', chart)
    assert tuple(map(float, mark)) == pytest.approx(((left + right) / 2, (top + bottom) / 2))
    assert left < right
    assert top < bottom  # y grows downwards


def test_charts_stand_any_values() -> None:
    assert line_chart([Series("x", [1, 2], [None, None])], Axis()) == ""
    assert "<svg" in line_chart([Series("x", [3], [0.0])], Axis())
    assert "<svg" in line_chart([Series("x", list(range(5000)), [1e-9 * i for i in range(5000)])], Axis(low=0.0))
    gap = line_chart([Series("x", [1, 2, 3], [1.0, None, 2.0])], Axis())
    assert re.search(r'class="line"[^>]* d="M[^L]*M[^L]*"', gap)  # two pieces, no line across


def test_ticks_are_round() -> None:
    assert ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1]
    assert ticks(0.3, 97) == [25, 50, 75]
    assert ticks(-0.02, 0.02) == pytest.approx([-0.02, -0.01, 0, 0.01, 0.02])


def test_the_page_has_no_control_codes(run_dir: Path) -> None:
    (run_dir / "losses.jsonl").write_text(
        json.dumps({"step": 1, "worker": "env/0", "what": "\x1b[2J\u202e\x07"}) + "\n"
    )
    (run_dir / "provenance.json").write_text(json.dumps({"commit": "\x9b31m"}))
    shown = write_report(run_dir).read_text()
    assert not set("\x1b\x9b\x07\u202e") & set(shown) and "\\x9b31m" in shown


def test_memory_is_shown_with_its_slope(tmp_path: Path, config: RunConfig) -> None:
    sinks = MetricSinks(tmp_path, config)
    for step in range(1, 21):
        sinks.log(step, {"memory_env": 500.0 + 35 * step, "memory_free": 9000.0, "elapsed_s": 10.0 * step})
    sinks.close()
    shown = write_report(tmp_path).read_text()
    assert (
        "<td class=num>env</td><td class=num>1200 MB</td><td class=num>+35 MB</td><td class=num>+1.26e+04 MB</td>"
        in shown
    )
    assert "<td class=num>free</td><td class=num>9000 MB</td><td class=num>+0 MB</td>" in shown
