"""All metric sinks of a run behind one object, which the train loop uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.observability.metric_catalogue import evaluation_tag, training_tag
from rlrun.observability.records import EvaluationRecord, evaluation_metrics
from rlrun.observability.run_files import VIDEOS
from rlrun.observability.sinks.jsonl import JsonlSink
from rlrun.observability.sinks.sink import Sink
from rlrun.observability.video import write_mp4
from rlrun.system.errors import visible


class MetricSinks:
    """Writes to JSONL always, and to the trackers TensorBoard, W&B and Trackio as the section `logging` says.

    Example::

        sinks = MetricSinks(run_dir, config)
        sinks.log(3, {"success_rate": 0.5, "approx_kl": 0.01})
        sinks.video(3, "evaluation", frames, fps=15)
        sinks.close()
    """

    def __init__(self, run_dir: Path, config: RunConfig):
        self._run_dir = Path(run_dir)
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._jsonl = JsonlSink(self._run_dir)
        self._trackers: list[Sink] = []
        if config.logging.tensorboard:
            from rlrun.observability.sinks.tensorboard import TensorBoardSink  # half a second to import

            self._trackers.append(TensorBoardSink(self._run_dir))
        if config.logging.wandb:
            from rlrun.observability.sinks.wandb_run import WandbSink  # a second to import

            self._trackers.append(WandbSink(self._run_dir, config))
        if config.logging.trackio:
            from rlrun.observability.sinks.trackio_run import TrackioSink  # an optional package

            self._trackers.append(TrackioSink(self._run_dir, config))

    @property
    def _sinks(self) -> list[Sink]:
        return [self._jsonl, *self._trackers]

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log the metrics of one training step. Raises TypeError, naming the metric, for a value that is no number."""
        numbers = {visible(name): _number(name, value) for name, value in metrics.items()}
        self._jsonl.log(step, numbers)
        for tracker in self._trackers:
            tracker.log(step, {training_tag(name): value for name, value in numbers.items()})

    def evaluation(self, record: EvaluationRecord) -> None:
        """Log the numbers of an evaluation to the trackers; evaluations.jsonl has them in its own form."""
        numbers = evaluation_metrics(record)
        for tracker in self._trackers:
            tracker.log(record.step, {evaluation_tag(name): value for name, value in numbers.items()})

    def video(self, step: int, name: str, frames: np.ndarray, fps: float) -> Path:
        """Encode uint8 [L, H, W, 3] into videos/NAME-step-N.mp4 and pass it to every sink. Returns the path."""
        name = visible(name)
        path = self._run_dir / VIDEOS / f"{name.replace('/', '-')}-step-{step:06d}.mp4"
        write_mp4(path, frames, fps)
        for sink in self._sinks:
            sink.video(step, name, path, frames, fps)
        return path

    def text(self, step: int, name: str, text: str) -> None:
        """Log a text that belongs to a step."""
        for sink in self._sinks:
            sink.text(step, visible(name), visible(text))

    def alert(self, title: str, text: str) -> None:
        """Send an alert, which a person should look at now."""
        for sink in self._sinks:
            sink.alert(visible(title), visible(text))

    def resumed(self, step: int) -> None:
        """Note that the run goes on after training step `step`, from a checkpoint."""
        for sink in self._sinks:
            sink.resumed(step)

    def close(self) -> None:
        """Flush and close every sink."""
        for sink in self._sinks:
            sink.close()


def _number(name: str, value: float) -> float:
    try:
        return float(value)  # also 0-d arrays and tensors
    except (TypeError, ValueError) as error:
        raise TypeError(f"metric {name!r} is {value!r}, which is not one number") from error
