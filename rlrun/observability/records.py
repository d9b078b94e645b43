"""Finished episodes and evaluations as lines of JSON in the run directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlrun.data.messages import EnvTally, EpisodeReport, WorkerLoss
from rlrun.observability.intervals import wilson_interval
from rlrun.observability.run_files import EPISODES, EVALUATIONS, LOSSES, JsonLines, read_json_lines


@dataclass(frozen=True)
class EpisodeOutcome:
    """How one evaluation episode ended.

    Example: EpisodeOutcome(seed=2_000_003, success=True, episode_return=1.8, num_control_steps=44,
    instruction="turn on the radio", is_void=False)
    """

    seed: int  # reset seed
    success: bool
    episode_return: float
    num_control_steps: int
    instruction: str
    is_void: bool  # an infra fault ended it; its seed was repeated


@dataclass(frozen=True)
class EvaluationRecord:
    """The result of one evaluation. Episodes with infra faults are counted only in `num_infra_faults`.

    Example: EvaluationRecord(step=100, successes=58, episodes=64, success_rate=0.906, ci_low=0.81,
    ci_high=0.956, mean_q_score=0.93, num_infra_faults=0, mean_return=1.3, outcomes=[EpisodeOutcome(…), …])
    """

    step: int  # training steps done
    successes: int
    episodes: int
    success_rate: float  # 0..1
    ci_low: float  # 95 % Wilson
    ci_high: float
    mean_q_score: float  # 0..1
    num_infra_faults: int = 0
    mean_return: float = 0.0
    outcomes: list[EpisodeOutcome] = field(default_factory=list)  # of every episode, in order of seeds


def summarize_evaluation(step: int, reports: Iterable[EpisodeReport]) -> EvaluationRecord:
    """Count successes; without a valid episode the rate is 0 and the interval is 0..1."""
    reports = list(reports)
    sound = [report for report in reports if not report.infra_fault]
    successes = sum(report.success for report in sound)
    low, high = wilson_interval(successes, len(sound))
    count = max(1, len(sound))
    return EvaluationRecord(
        step=step,
        successes=successes,
        episodes=len(sound),
        success_rate=successes / count,
        ci_low=low,
        ci_high=high,
        mean_q_score=sum(report.q_score for report in sound) / count,
        num_infra_faults=len(reports) - len(sound),
        mean_return=sum(report.episode_return for report in sound) / count,
        outcomes=sorted((_outcome(report) for report in reports), key=lambda one: (one.seed, not one.is_void)),
    )


def _outcome(report: EpisodeReport) -> EpisodeOutcome:
    return EpisodeOutcome(
        seed=report.seed,
        success=report.success,
        episode_return=report.episode_return,
        num_control_steps=report.num_control_steps,
        instruction=report.instruction,
        is_void=report.infra_fault,
    )


def episode_metrics(reports: Iterable[EpisodeReport], losses: Iterable[WorkerLoss] = ()) -> dict[str, float]:
    """Return means over the valid episodes of a training step, and their number.

    Episodes that ran in a lost env worker have no report, count as infra faults, and are repeated. If most reported
    episodes are void there are no means: those that survive are no sample of the world.
    """
    reports = list(reports)
    sound = [report for report in reports if not report.infra_fault]
    num_void = len(reports) - len(sound)
    num_faults = num_void + sum(loss.num_envs for loss in losses)
    metrics = {"num_episodes": float(len(sound)), "num_infra_faults": float(num_faults)}
    for name, attribute in {
        "success_rate": "success",
        "q_score": "q_score",
        "episode_return": "episode_return",
        "episode_length": "num_control_steps",
    }.items():
        if len(sound) > num_void:
            metrics[name] = sum(getattr(report, attribute) for report in sound) / len(sound)
    return metrics


def tally_metrics(tallies: Sequence[EnvTally]) -> dict[str, float]:
    """Return what the chunk steps of all env workers were like."""
    num_steps = max(1, sum(tally.num_chunk_steps for tally in tallies))
    metrics = {"actions_outside": sum(tally.outside * tally.num_chunk_steps for tally in tallies) / num_steps}
    num_pictures = sum(tally.num_moves * len(tally.num_frozen) for tally in tallies)
    if num_pictures:
        metrics["frozen_pictures"] = sum(sum(tally.num_frozen) for tally in tallies) / num_pictures
    return metrics


def loss_metrics(losses: Iterable[WorkerLoss]) -> dict[str, float]:
    """Return the number of workers replaced in a training step. Example: {"num_worker_restarts": 1.0}."""
    return {"num_worker_restarts": float(len(list(losses)))}


def evaluation_metrics(record: EvaluationRecord) -> dict[str, float]:
    """Return the numbers of an evaluation for trackers. Example: {"success_rate": 0.9, "success_rate_low": 0.81, …}."""
    return {
        "success_rate": record.success_rate,
        "success_rate_low": record.ci_low,
        "success_rate_high": record.ci_high,
        "episode_return": record.mean_return,
        "q_score": record.mean_q_score,
        "num_episodes": float(record.episodes),
        "num_infra_faults": float(record.num_infra_faults),
    }


def record_losses(run_dir: Path, step: int, losses: Iterable[WorkerLoss]) -> None:
    """Append the workers that were lost in training step `step` to losses.jsonl."""
    _append(run_dir / LOSSES, [{"step": step, **asdict(loss)} for loss in losses])


def record_evaluation(run_dir: Path, record: EvaluationRecord) -> None:
    """Append an evaluation to evaluations.jsonl."""
    _append(run_dir / EVALUATIONS, [asdict(record)])


def record_episodes(run_dir: Path, step: int, reports: Iterable[EpisodeReport]) -> None:
    """Append the episodes that ended in training step `step` to episodes.jsonl."""
    _append(run_dir / EPISODES, [{"step": step, **asdict(report)} for report in reports])


def read_evaluations(run_dir: Path) -> list[EvaluationRecord]:
    """Read the evaluations in order of steps; of a step that was evaluated twice, the later one."""
    by_step = {line["step"]: _evaluation(line) for line in read_json_lines(run_dir / EVALUATIONS)}
    return [by_step[step] for step in sorted(by_step)]


def _evaluation(line: dict[str, Any]) -> EvaluationRecord:
    outcomes = [EpisodeOutcome(**one) for one in line.get("outcomes", [])]
    return EvaluationRecord(**line | {"outcomes": outcomes})


def _append(path: Path, records: list[dict]) -> None:
    if not records:
        return
    lines = JsonLines(path)
    try:
        for record in records:
            lines.write(record)
    finally:
        lines.close()
