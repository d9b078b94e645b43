"""The contents of a run directory, read once; missing files are None or empty."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.observability import run_files
from rlrun.observability.ablation import ABLATION
from rlrun.observability.records import EvaluationRecord, read_evaluations
from rlrun.observability.timeline import summary
from rlrun.system.local_files import read_json, read_yaml


@dataclass
class RunRecord:
    """A run, finished or not. Missing files raise nothing; damaged files are named in `damaged`."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    config_diff: str | None = None  # YAML
    plan: dict[str, Any] | None = None
    provenance: dict[str, Any] | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)  # by step
    evaluations: list[EvaluationRecord] = field(default_factory=list)  # by step
    notes: list[dict[str, Any]] = field(default_factory=list)
    faulty_episodes: list[dict[str, Any]] = field(default_factory=list)  # infra faults
    losses: list[dict[str, Any]] = field(default_factory=list)  # workers that were replaced
    worker_seconds: dict[str, dict[str, float]] = field(default_factory=dict)  # worker -> phase -> seconds
    videos: list[Path] = field(default_factory=list)  # in order of steps
    damaged: list[str] = field(default_factory=list)  # files that could not be read, and why

    @property
    def ablation(self) -> str | None:
        """Return what the policy looked at after imitation, in words; None: this run did not imitate."""
        return next((str(note["text"]) for note in self.notes if note.get("name") == ABLATION and "text" in note), None)

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
    record.config = _parsed(record, run_files.CONFIG) or {}
    diff = folder / run_files.CONFIG_DIFF
    record.config_diff = diff.read_text(encoding="utf-8") if diff.exists() else None
    record.plan = _parsed(record, run_files.PLAN)
    record.provenance = _parsed(record, run_files.PROVENANCE)
    record.metrics = run_files.read_metrics(folder)
    record.evaluations = read_evaluations(folder)
    record.notes = list(run_files.read_json_lines(folder / run_files.NOTES))
    episodes = run_files.read_json_lines(folder / run_files.EPISODES)
    record.faulty_episodes = [episode for episode in episodes if episode.get("infra_fault")]
    record.losses = list(run_files.read_json_lines(folder / run_files.LOSSES))
    timeline = folder / run_files.TIMELINE
    record.worker_seconds = summary(timeline) if timeline.exists() else {}
    videos = (folder / run_files.VIDEOS).glob("*.mp4")
    record.videos = sorted(videos, key=lambda path: path.stem.rpartition("-step-")[::-1])  # steps have equal widths
    return record


def _parsed(record: RunRecord, name: str) -> dict[str, Any] | None:
    """Read a JSON or YAML file as a dict; None if it is missing or damaged."""
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
