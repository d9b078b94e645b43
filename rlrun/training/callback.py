"""The interface of callbacks: a class of one's own that a run calls, for loggers and early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlrun.data.messages import WorkerLoss
from rlrun.observability.records import EvaluationRecord


class Callback:
    """Called by the driver between two parts of a run; override what you need. A run waits for each call.

    An exception ends the run with a checkpoint. Example in YAML: `callbacks: [{use: "my_module:EarlyStopping",
    patience: 3}]`.
    """

    stop_reason: str | None = None  # why the run is to end; None: it goes on

    def stop(self, reason: str) -> None:
        """End the run after the present step, as if num_steps were reached: with evaluation, checkpoint and report."""
        self.stop_reason = reason

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a finished training step, as in metrics.jsonl. step: training steps done."""

    def on_evaluation(self, result: EvaluationRecord) -> None:
        """Take the result of an evaluation."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Take the folder of a whole checkpoint. It may be removed later (checkpoint.keep_last)."""

    def on_loss(self, step: int, loss: WorkerLoss) -> None:
        """Take the loss of a worker, which has been replaced; called after the training step in which it was lost."""
