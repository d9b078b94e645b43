"""Names of the files in a run directory, and files of JSON lines that survive a killed writer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.system.local_files import parse_json

CONFIG = "config.yaml"
CONFIG_DIFF = "config_diff.yaml"
PLAN = "plan.json"
PROVENANCE = "provenance.json"
METRICS = "metrics.jsonl"
NOTES = "notes.jsonl"
EPISODES = "episodes.jsonl"
LOSSES = "losses.jsonl"
EVALUATIONS = "evaluations.jsonl"
TIMELINE = "timeline.json"
REPORT = "report.html"
VIDEOS = "videos"
LOGS = "logs"
BOARD = "board"
ALARMS = "alarms"
PROFILE = "profile"
FORMER = "former_"  # former_1, …: what earlier runs left in the folder, which one that started anew set aside


def num_former(run_dir: Path) -> int:
    """Return the number of the last folder of an earlier run that is set aside; 0: there is none."""
    numbers = [path.name.removeprefix(FORMER) for path in run_dir.glob(f"{FORMER}*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


class JsonLines:
    """Appends JSON objects, one per line, flushed. Starts a new line if a killed writer left half of one."""

    def __init__(self, path: Path):
        """path: in a folder that exists: a run folder that is gone must not come back with a single file in it."""
        is_torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._file = path.open("a", encoding="utf-8")
        if is_torn:
            self._file.write("\n")

    def write(self, record: dict[str, Any]) -> None:
        """Append `record`. Raises ValueError for a number that is not finite, which JSON cannot hold."""
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of `path`, without the incomplete lines of killed writers; nothing if there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = parse_json(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def last_object(lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the last line that is a whole JSON object; None without one."""
    for line in reversed(lines):
        with suppress(ValueError):
            return parse_json(line)
    return None


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return one dict per training step, in order. A step that was repeated after a resume has its later values."""
    by_step: dict[int, dict[str, Any]] = {}
    for record in read_json_lines(run_dir / METRICS):
        by_step.setdefault(int(record["step"]), {}).update(record)
    return [by_step[step] for step in sorted(by_step)]
