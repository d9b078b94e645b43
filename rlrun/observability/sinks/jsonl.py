"""metrics.jsonl and notes.jsonl: the run's own record, always written."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np

from rlrun.observability.run_files import METRICS, NOTES, JsonLines


class JsonlSink:
    """Writes one object per step. A number that is not finite becomes null and counts in `num_null_metrics`."""

    def __init__(self, run_dir: Path):
        self._metrics = JsonLines(run_dir / METRICS)
        self._notes = JsonLines(run_dir / NOTES)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append one line with the metrics of a step."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        num_null = sum(value is None for value in finite.values())
        self._metrics.write({"step": step, "time_s": time.time(), **finite, "num_null_metrics": num_null})

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """Append the path of the file to notes.jsonl."""
        self.text(step, name, f"video {path.name}, {len(frames)} frames, {fps:g} per second")

    def text(self, step: int, name: str, text: str) -> None:
        """Append a text to notes.jsonl."""
        self._notes.write({"step": step, "name": name, "text": text})

    def alert(self, title: str, text: str) -> None:
        """Append an alert to notes.jsonl."""
        self._notes.write({"alert": title, "text": text})

    def resumed(self, step: int) -> None:
        """Do nothing: readers take the last line of a step."""

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._notes.close()
