"""Trackio sink (an optional package), which keeps metrics in a local database. Its failures never stop the training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.config.provenance import as_tree
from rlrun.config.schema import RunConfig
from rlrun.observability.run_files import num_former
from rlrun.system.errors import ExitStatus, RunError

logger = logging.getLogger(__name__)


class TrackioSink:
    """Sink for Trackio. A resumed run continues its curves, since its name is that of the run folder.

    After the first error of the library it warns once and stops logging. Raises RunError if it is not installed.
    """

    def __init__(self, run_dir: Path, config: RunConfig):
        self._library = _library()
        former = num_former(run_dir)  # whose curves stay apart
        self._run: Any = None
        try:
            self._run = self._library.init(
                project=config.logging.project,
                name=f"{config.name}-{run_dir.name}" + (f"-{1 + former}" if former else ""),
                config=as_tree(config),
                resume="allow",
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        except Exception as error:  # the library's errors share no base class, and none of them may stop a run
            logger.warning("Trackio could not start (%s); the run goes on without it", error)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log the numbers of one step."""
        self._send(lambda run: run.log(metrics, step=step))

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """Log the encoded file as a video."""
        self._send(lambda run: run.log({name: self._library.Video(str(path), format="mp4")}, step=step))

    def text(self, step: int, name: str, text: str) -> None:
        """Log a text as Markdown, preformatted."""
        self._send(lambda run: run.log({name: self._library.Markdown(f"```text\n{text}\n```")}, step=step))

    def alert(self, title: str, text: str) -> None:
        """Log an alert, which Trackio shows and may forward to a webhook."""
        self._send(lambda run: run.alert(title, text))

    def resumed(self, step: int) -> None:
        """Do nothing: the later value of a repeated step is drawn beside the earlier one."""

    def close(self) -> None:
        """Write the remaining records."""
        self._send(lambda run: run.finish())
        self._run = None

    def _send(self, action: Callable[[Any], None]) -> None:
        if self._run is None:
            return
        try:
            action(self._run)
        except Exception as error:  # as above
            logger.warning("Trackio stopped taking data (%s); the run goes on without it", error)
            self._run = None


def _library() -> Any:
    """Import trackio, which is optional. Raises RunError if that fails."""
    try:
        import trackio
    except ImportError as error:
        raise RunError(
            "logging.trackio needs the package trackio, which cannot be imported here.",
            key="logging.trackio",
            value=True,
            cause=str(error),
            remedy="`pip install 'rlrun[trackio]'` on the machine that starts the run, or set logging.trackio=false.",
            exit_status=ExitStatus.doctor,
        ) from error
    return trackio
