"""What every sink of metrics does."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np


class Sink(Protocol):
    """Takes what a run has to show. Steps are training steps; any metric name is fine."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """All numbers of one step; non-finite ones are dropped, or marked where the format can."""

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """One clip: the encoded file, and its frames, uint8 [L, H, W, 3]."""

    def text(self, step: int, name: str, text: str) -> None:
        """A remark that belongs to a step."""

    def alert(self, title: str, text: str) -> None:
        """Something that a person should look at now; for services that reach people."""

    def close(self) -> None:
        """Write out everything."""
