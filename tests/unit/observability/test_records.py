"""Episodes and evaluations as lines of JSON."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.edges.reports import EnvTally, EpisodeReport, WorkerLoss
from rlrun.observability import run_files
from rlrun.observability.records import (
    episode_metrics,
    read_evaluations,
    read_run,
    record_episodes,
    record_evaluation,
    summarize_evaluation,
    tally_metrics,
    wilson_interval,
)
from rlrun.observability.run_files import JsonLines, read_json_lines


def test_infra_faults_are_in_no_count(episode: Callable[..., EpisodeReport]) -> None:
    record = summarize_evaluation(5, [episode(), episode(), episode(success=False), episode(infra_fault=True)])
    assert (record.successes, record.episodes, record.num_infra_faults) == (2, 3, 1)
    assert record.success_rate == record.mean_q_score == 2 / 3
    assert record.mean_return == episode().episode_return == 1.5
    assert (record.ci_low, record.ci_high) == wilson_interval(2, 3)


def test_without_valid_episodes_the_interval_is_whole(episode: Callable[..., EpisodeReport]) -> None:
    record = summarize_evaluation(5, [episode(infra_fault=True)])
    assert (record.success_rate, record.ci_low, record.ci_high) == (0.0, 0.0, 1.0)


def test_the_latest_evaluation_of_a_step_counts(tmp_path: Path, episode: Callable[..., EpisodeReport]) -> None:
    for step, success in ((10, True), (0, False), (10, False)):
        record_evaluation(tmp_path, summarize_evaluation(step, [episode(success)]))
    assert [(record.step, record.successes) for record in read_evaluations(tmp_path)] == [(0, 0), (10, 0)]


def test_steps_after_a_checkpoint_that_the_run_returned_to_are_void(
    tmp_path: Path, episode: Callable[..., EpisodeReport]
) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    for attempt, step in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 3)):
        lines.write({"step": step, "attempt": attempt})
    lines.close()
    for step in (0, 2, 4):
        record_evaluation(tmp_path, summarize_evaluation(step, [episode()]))
    found = read_run(tmp_path)
    assert [(line["step"], line["attempt"]) for line in found.metrics] == [(1, 1), (2, 1), (3, 2)]
    assert [record.step for record in found.evaluations] == [0, 2] and found.num_steps == 3


def test_episodes_carry_their_step(tmp_path: Path, episode: Callable[..., EpisodeReport]) -> None:
    record_episodes(tmp_path, 3, [episode(seed=1), episode(seed=2, success=False)])
    found = [(line["step"], line["seed"], line["success"]) for line in read_json_lines(tmp_path / "episodes.jsonl")]
    assert found == [(3, 1, True), (3, 2, False)]


def test_episodes_of_a_lost_worker_are_infra_faults_and_in_no_mean(episode: Callable[..., EpisodeReport]) -> None:
    reports = [episode(), episode(success=False), episode(infra_fault=True)]
    metrics = episode_metrics(reports, [WorkerLoss("env/1", "its process ended", num_envs=4)])
    assert metrics["num_infra_faults"] == 5 and metrics["num_episodes"] == 2 and metrics["success_rate"] == 0.5


def test_few_survivors_have_no_success_rate(episode: Callable[..., EpisodeReport]) -> None:
    metrics = episode_metrics([episode(), episode(infra_fault=True), episode(infra_fault=True)])
    assert metrics == {"num_episodes": 1, "num_infra_faults": 2}


def test_tallies_are_weighted_by_their_chunk_steps() -> None:
    metrics = tally_metrics([EnvTally(30, 3, 10, (0, 10), 0.1, ("go",)), EnvTally(10, 3, 10, (5, 5), 0.5, ("go",))])
    assert abs(metrics["actions_outside"] - 0.2) < 1e-9 and metrics["frozen_pictures"] == 0.5
    assert tally_metrics([EnvTally(30, 3, 10, (), 0.0, ("go",))]) == {"actions_outside": 0.0}


def bytes_read() -> int:
    """Return the bytes that this process has read so far."""
    (count,) = re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    return int(count)


def test_appending_a_line_reads_none_of_those_before(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text("{}\n" * 10**7)
    before = bytes_read()
    JsonLines(path).close()
    assert bytes_read() - before < 10**6


def test_a_line_after_a_torn_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    for text, whole in (("", ""), ("{}\n", "{}\n"), ('{"step": 1', '{"step": 1\n')):
        path.write_text(text)
        lines = JsonLines(path)
        lines.write({"step": 2})
        lines.close()
        assert path.read_text() == whole + '{"step": 2}\n'


def test_void_episodes_are_counted_and_others_are_not_even_parsed(
    episode: Callable[..., EpisodeReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(100):
        record_episodes(tmp_path, step, [episode(), episode(infra_fault=step % 2 == 0), episode(success=False)])
    parsed: list[str] = []
    parse = run_files.parse_json
    monkeypatch.setattr(run_files, "parse_json", lambda line: (parsed.append(line), parse(line))[1])
    record = read_run(tmp_path)
    assert record.num_faulty_episodes == len(parsed) == 50
    assert [one["step"] for one in record.faulty_episodes] == list(range(60, 100, 2))
