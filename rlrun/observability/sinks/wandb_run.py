"""A Weights & Biases run: online when a key is set, else offline; never in the way of training."""

from __future__ import annotations

import html
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import wandb

from rlrun.config.provenance import as_tree
from rlrun.config.schema import RunConfig

logger = logging.getLogger(__name__)

Mode = Literal["online", "offline"]
INIT_TIMEOUT_S = 20.0
FINISH_TIMEOUT_S = 30.0
STEP = "train_step"  # our own axis: W&B's step may not go back, a resumed run's does


class WandbSink:
    """After the first error of the service the sink says so once and stays silent: the run goes on."""

    def __init__(self, run_dir: Path, config: RunConfig):
        self._run = _start(run_dir, config)
        if self._run is not None:
            self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """All numbers of one step; W&B shows non-finite ones as such."""
        self._send(lambda run: run.log({**metrics, STEP: step}))

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """The encoded file as a W&B video."""
        self._send(lambda run: run.log({name: wandb.Video(str(path), format="mp4"), STEP: step}))

    def text(self, step: int, name: str, text: str) -> None:
        """Shown as preformatted text."""
        self._send(lambda run: run.log({name: wandb.Html(f"<pre>{html.escape(text)}</pre>"), STEP: step}))

    def alert(self, title: str, text: str) -> None:
        """An alert, which W&B sends on as its user has chosen: mail, Slack."""
        self._send(lambda run: run.alert(title=title, text=text))

    def close(self) -> None:
        """Upload the rest, for at most FINISH_TIMEOUT_S; what is left can be sent by `wandb sync`."""
        self._send(_finish)
        self._run = None

    def _send(self, action: Callable[[wandb.Run], None]) -> None:
        if self._run is None:
            return
        try:
            action(self._run)
        except Exception as error:  # W&B's errors share no base class, and none of them may stop a run
            logger.warning("W&B stopped taking data (%s); the run goes on without it", error)
            self._run = None


def _finish(run: wandb.Run) -> None:
    run.finish()
    wandb.teardown()  # ends its service process: only then all of an offline run is on the disk


def _start(run_dir: Path, config: RunConfig) -> wandb.Run | None:
    """The online run where a key is set and the server answers; else an offline one; None if neither works."""
    modes: list[Mode] = ["online", "offline"] if os.environ.get("WANDB_API_KEY") else ["offline"]
    for mode in modes:
        settings = wandb.Settings(
            console="off",  # the live console repaints: its output is no log
            silent=True,
            init_timeout=INIT_TIMEOUT_S,
            login_timeout=INIT_TIMEOUT_S,
            finish_timeout=FINISH_TIMEOUT_S,
        )
        try:
            return wandb.init(
                project=config.logging.wandb_project,
                name=f"{config.name}/{run_dir.name}",
                id=_run_id(run_dir) + ("-offline" if mode != modes[0] else ""),  # the service still holds the first
                resume="allow" if mode == "online" else None,
                dir=str(run_dir),
                config=as_tree(config),
                mode=mode,
                settings=settings,
            )
        except Exception as error:  # as above
            logger.warning("W&B %s run could not start: %s", mode, error)
    return None


def _run_id(run_dir: Path) -> str:
    """One id per run directory, so that a resumed run continues its curves."""
    path = run_dir / "wandb_id.txt"
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:12])
    return path.read_text().strip()
