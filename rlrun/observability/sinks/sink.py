"""The interface of a metric sink."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np


class Sink(Protocol):
    """Receives the metrics, videos, texts and alerts of a run. Steps are training steps.

    Trackers get metric names with their group, as "train/lr"; jsonl.py gets them plain.
    """

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log the numbers of one step. Those that are not finite are dropped, or marked if the format can do that."""

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """Log a video: the encoded file, and its frames, uint8 [L, H, W, 3]."""

    def text(self, step: int, name: str, text: str) -> None:
        """Log a text that belongs to a step."""

    def alert(self, title: str, text: str) -> None:
        """Send an alert, which a person should look at now."""

    def resumed(self, step: int) -> None:
        """Note that the run goes on after training step `step`: what was logged of later steps is void."""

    def close(self) -> None:
        """Flush and close."""
