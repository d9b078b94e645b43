"""Records of a run: episodes, evaluations and worker losses as JSON lines, metrics from them, and reading them again.

Success rates have 95 % Wilson intervals. `RunRecord` is all that a run folder holds, for reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

from rlrun.config.former_keys import moved
from rlrun.edges.reports import EnvTally, EpisodeReport, GroupTally, WorkerLoss
from rlrun.edges.starts import EpisodeStart, Split, split_of
from rlrun.observability import run_files
from rlrun.observability.run_files import (
    CERTIFICATIONS,
    EPISODES,
    EVALUATIONS,
    LOSSES,
    STARTS,
    JsonLines,
    read_json_lines,
    without_void,
)
from rlrun.observability.timeline import seconds_by_phase
from rlrun.system.local_files import read_json, read_yaml

MAX_FAULTS = 20  # void episodes that a report lists
ABLATION_NOTE = "what the policy looks at"  # the name of the text in notes.jsonl
HELD_LOSS = "held_loss"
EXCHANGED_LOSSES = {"pictures": "held_loss_other_pictures", "instructions": "held_loss_other_instructions"}
MIN_LOSS_GROWTH = 0.02  # a policy whose loss grows by a smaller share ignores the exchanged input


def wilson_interval(successes: int, episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the lower and upper bound of the success probability, each in 0..1; (0, 1) without episodes.

    Example: wilson_interval(58, 64) is about (0.81, 0.96).
    """
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes out of {episodes} episodes is impossible")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is a share between 0 and 1, not {confidence}")
    if episodes == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / episodes
    shrink = 1 + z * z / episodes
    centre = (rate + z * z / (2 * episodes)) / shrink
    half_width = z / shrink * sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes**2))
    low = 0.0 if successes == 0 else centre - half_width  # exact, where the formula has rounding errors
    high = 1.0 if successes == episodes else centre + half_width
    return low, high


@dataclass(frozen=True)
class EpisodeOutcome:
    """Outcome of one evaluation episode.

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
    """Result of one evaluation. Episodes with infra faults are counted only in `num_infra_faults`.

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
    num_left_out: int = 0  # seeds whose every episode was void; they have no part in the rate
    numbers: dict[str, float] = field(default_factory=dict)  # means of own reward terms and of the world's info

    @property
    def is_on_test(self) -> bool:
        """Whether its episodes begin from starts that are kept for certification."""
        return any(split_of(outcome.seed) is Split.test for outcome in self.outcomes)


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
        num_left_out=len({report.seed for report in reports} - {report.seed for report in sound}),
        numbers=number_means(sound),
    )


def number_means(reports: Sequence[EpisodeReport]) -> dict[str, float]:
    """Return the mean of each number over the episodes that have it. Example: {"info/distance": 0.2}."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.numbers.items():
            values.setdefault(name, []).append(value)
    return {name: sum(some) / len(some) for name, some in values.items()}


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
    episodes are void there are no means: the rest is not a representative sample.
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
    return metrics | (number_means(sound) if len(sound) > num_void else {})


def tally_metrics(tallies: Sequence[EnvTally]) -> dict[str, float]:
    """Return metrics of the chunk steps of all env workers: actions out of range, unchanged images."""
    num_steps = max(1, sum(tally.num_chunk_steps for tally in tallies))
    metrics = {"actions_outside": sum(tally.outside * tally.num_chunk_steps for tally in tallies) / num_steps}
    num_pictures = sum(tally.num_moves * len(tally.num_frozen) for tally in tallies)
    if num_pictures:
        metrics["frozen_pictures"] = sum(sum(tally.num_frozen) for tally in tallies) / num_pictures
    return metrics


def group_metrics(tallies: Iterable[GroupTally | None]) -> dict[str, float]:
    """Return metrics of the groups of all env workers, by env rank; {} if groups are not filtered."""
    known = [tally for tally in tallies if tally is not None]
    if not known:
        return {}
    return {
        "num_gen_batches": float(max(tally.num_gen_batches for tally in known)),
        "num_dropped_groups": float(sum(tally.num_dropped for tally in known)),
        "num_missing_groups": float(sum(tally.num_missing for tally in known)),
        "num_groups": float(sum(tally.num_groups for tally in known)),
    }


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
        **record.numbers,
    }


def record_losses(run_dir: Path, step: int, losses: Iterable[WorkerLoss]) -> None:
    """Append the workers that were lost in training step `step` to losses.jsonl."""
    _append(run_dir / LOSSES, [{"step": step, **asdict(loss)} for loss in losses])


def record_evaluation(run_dir: Path, record: EvaluationRecord) -> None:
    """Append an evaluation to evaluations.jsonl."""
    _append(run_dir / EVALUATIONS, [asdict(record)])


def record_episodes(run_dir: Path, step: int, reports: Iterable[EpisodeReport]) -> None:
    """Append the episodes that ended in training step `step` to episodes.jsonl; each number is a column of its own."""
    lines = []
    for report in reports:
        line = {"step": step, **asdict(report)}
        numbers = line.pop("numbers")
        lines.append(line | numbers)
    _append(run_dir / EPISODES, lines)


class Purpose(Enum):
    """The purpose of episodes."""

    training = "training"
    evaluation = "evaluation"


def record_starts(run_dir: Path, step: int, during: Purpose, starts: Sequence[EpisodeStart]) -> None:
    """Append the starts of the episodes that began in training step `step`, or in an evaluation after it."""
    line: dict[str, Any] = {"step": step, "during": during.value}
    line |= {"seeds": [start.seed for start in starts], "digests": [start.digest for start in starts]}
    _append(run_dir / STARTS, [line])  # also for no starts: a line that is missing was lost


def record_certification(run_dir: Path, line: dict[str, Any]) -> None:
    """Append a line to certifications.jsonl: that a policy of this run is being tested, or what the test gave."""
    _append(run_dir / CERTIFICATIONS, [line])


@dataclass(frozen=True)
class SeenStarts:
    """Starts that a run has seen in one training step, or in an evaluation after it."""

    step: int
    during: Purpose
    starts: list[EpisodeStart]

    def __str__(self) -> str:
        """Return when. Example: "training, step 3"."""
        return f"{self.during.value}, step {self.step}"


def read_starts(run_dir: Path) -> list[SeenStarts]:
    """Read the starts that a run has seen, in the order in which they were recorded."""
    return [
        SeenStarts(
            int(line["step"]),
            Purpose(line["during"]),
            [EpisodeStart(int(seed), str(digest)) for seed, digest in zip(line["seeds"], line["digests"], strict=True)],
        )
        for line in read_json_lines(run_dir / STARTS)
    ]


def read_world(run_dir: Path) -> list[dict[str, str]]:
    """Read the fingerprints of a run's simulators; [] if world.json is missing or damaged."""
    try:
        content = read_json(run_dir / run_files.WORLD)
        return [{str(key): str(value) for key, value in fingerprint.items()} for fingerprint in content["fingerprints"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def read_evaluations(run_dir: Path) -> list[EvaluationRecord]:
    """Read the evaluations in order of steps, without void ones; of a step that was evaluated twice, the later one."""
    lines = without_void(read_json_lines(run_dir / EVALUATIONS))
    return list({line["step"]: _evaluation(line) for line in lines}.values())


def _evaluation(line: dict[str, Any]) -> EvaluationRecord:
    outcomes = [EpisodeOutcome(**outcome) for outcome in line.get("outcomes", [])]
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


@dataclass(frozen=True)
class AblationResult:
    """Result of an ablation as text: the loss with exchanged inputs."""

    words: str
    is_blind: bool  # the policy ignores one of its inputs


def ablation_sentence(metrics: Mapping[str, float]) -> AblationResult | None:
    """Return the ablation's result from the metrics of `exchanged_losses`; None: nothing was exchanged.

    Example: "with pictures exchanged: loss 0.31 -> 0.95; with instructions exchanged: loss 0.31 -> 0.31: the policy
    does not look at its instructions".
    """
    parts = []
    is_blind = False
    for what, name in EXCHANGED_LOSSES.items():
        if name in metrics:
            held = metrics[HELD_LOSS]
            other = metrics[name]
            ignores = not other > (1 + MIN_LOSS_GROWTH) * held
            is_blind |= ignores
            end = f": the policy does not look at its {what}" if ignores else ""
            parts.append(f"with {what} exchanged: loss {held:.2f} -> {other:.2f}{end}")
    return AblationResult("; ".join(parts), is_blind) if parts else None


@dataclass
class RunRecord:
    """Content of a run folder, of a run finished or not. Missing files are allowed; corrupted ones are in `damaged`."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    config_diff: str | None = None  # YAML
    plan: dict[str, Any] | None = None
    provenance: dict[str, Any] | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)  # by step
    evaluations: list[EvaluationRecord] = field(default_factory=list)  # by step
    notes: list[dict[str, Any]] = field(default_factory=list)
    num_faulty_episodes: int = 0  # infra faults
    faulty_episodes: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_FAULTS))  # the last ones
    losses: list[dict[str, Any]] = field(default_factory=list)  # workers that were replaced
    worker_seconds: dict[str, dict[str, float]] = field(default_factory=dict)  # worker -> phase -> seconds
    videos: list[Path] = field(default_factory=list)  # in order of steps
    damaged: list[str] = field(default_factory=list)  # files that could not be read, and why

    @property
    def ablation(self) -> str | None:
        """The ablation's result after imitation; None: this run did not imitate."""
        return next(
            (str(note["text"]) for note in self.notes if note.get("name") == ABLATION_NOTE and "text" in note), None
        )

    @property
    def name(self) -> str:
        """Name of the run, or of its folder."""
        return str(self.config.get("name") or self.folder.resolve().name)

    @property
    def num_steps(self) -> int:
        """Number of training steps done."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    def values(self, metric: str) -> list[float | None]:
        """Return one value per logged step; None where it was not logged or is not finite."""
        return [record.get(metric) for record in self.metrics]

    def has(self, metric: str) -> bool:
        """Return whether any step has a number for `metric`."""
        return any(value is not None for value in self.values(metric))


def read_run(folder: Path) -> RunRecord:
    """Read a run directory. Raises FileNotFoundError if `folder` is no directory."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no run directory")
    record = RunRecord(folder)
    record.config = moved(_read_mapping(record, run_files.CONFIG) or {})
    diff = folder / run_files.CONFIG_DIFF
    record.config_diff = diff.read_text(encoding="utf-8") if diff.exists() else None
    record.plan = _read_mapping(record, run_files.PLAN)
    record.provenance = _read_mapping(record, run_files.PROVENANCE)
    record.metrics = run_files.read_metrics(folder)
    record.evaluations = read_evaluations(folder)
    if record.metrics:  # evaluations of later steps are void: the run returned to a checkpoint before them
        last_step = int(record.metrics[-1]["step"])
        record.evaluations = [evaluation for evaluation in record.evaluations if evaluation.step <= last_step]
    record.notes = list(run_files.read_json_lines(folder / run_files.NOTES))
    for episode in run_files.read_json_lines(folder / run_files.EPISODES, holding='"infra_fault": true'):
        record.num_faulty_episodes += 1
        record.faulty_episodes.append(episode)
    record.losses = list(run_files.read_json_lines(folder / run_files.LOSSES))
    timeline = folder / run_files.TIMELINE
    record.worker_seconds = seconds_by_phase(timeline) if timeline.exists() else {}
    videos = (folder / run_files.VIDEOS).glob("*.mp4")
    record.videos = sorted(videos, key=lambda path: path.stem.rpartition("-step-")[::-1])  # steps have equal widths
    return record


def _read_mapping(record: RunRecord, name: str) -> dict[str, Any] | None:
    """Read a JSON or YAML file as a dict; None if it is missing or corrupted."""
    path = record.folder / name
    if not path.exists():
        return None
    try:
        content = read_json(path) if path.suffix == ".json" else read_yaml(path)
    except ValueError as error:
        record.damaged.append(f"{name}: {error}")
        return None
    if content is not None and not isinstance(content, dict):
        record.damaged.append(f"{name}: holds a {type(content).__name__}, not a mapping")
        return None
    return content or {}
