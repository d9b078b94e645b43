"""Weights & Biases sink: by WANDB_MODE, else online if there is a key. Its failures never stop the training."""

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
_MODE = "WANDB_MODE"
INIT_TIMEOUT_S = 20.0
FINISH_TIMEOUT_S = 30.0
STEP = "train_step"  # an axis of its own: W&B's step may not decrease, but that of a resumed run does


class WandbSink:
    """Sink for W&B. After the first error of the service it warns once and stops logging."""

    def __init__(self, run_dir: Path, config: RunConfig):
        self._run = _start(run_dir, config)
        if self._run is not None:
            self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log the numbers of one step, also those that are not finite."""
        self._send(lambda run: run.log({**metrics, STEP: step}))

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """Log the encoded file as a W&B video."""
        self._send(lambda run: run.log({name: wandb.Video(str(path), format="mp4"), STEP: step}))

    def text(self, step: int, name: str, text: str) -> None:
        """Log a text, shown preformatted."""
        self._send(lambda run: run.log({name: wandb.Html(f"<pre>{html.escape(text)}</pre>"), STEP: step}))

    def alert(self, title: str, text: str) -> None:
        """Send an alert, which W&B forwards as its user has chosen: mail, Slack."""
        self._send(lambda run: run.alert(title=title, text=text))

    def resumed(self, step: int) -> None:
        """Do nothing: curves are drawn over train_step, so that those of a resumed run continue."""

    def close(self) -> None:
        """Upload the rest, for FINISH_TIMEOUT_S at most; `wandb sync` can upload what is left."""
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
    wandb.teardown()  # ends its service process; only then an offline run is complete on the disk


def modes() -> list[Mode]:
    """Return the modes to try in turn; [] if W&B is switched off.

    W&B's own settings decide first: WANDB_MODE, else `wandb offline` in the working folder. Without one, a key that
    W&B finds makes the run online: WANDB_API_KEY, or what `wandb login` wrote into ~/.netrc.
    """
    chosen = wandb.setup(wandb.Settings(silent=True, console="off")).settings.mode
    if chosen == "disabled":
        logger.warning("W&B is switched off (%s): logging.wandb=true has no effect", _decided_by())
        return []
    if chosen in ("offline", "dryrun"):
        logger.info("W&B is offline (%s)", _decided_by())
        return ["offline"]
    is_named = _MODE in os.environ  # online, in spite of a missing key: W&B then says what it lacks
    try:
        if is_named or wandb.login(prompt=False, verify=False):
            return ["online", "offline"]
    except wandb.errors.AuthenticationError as error:
        logger.warning("W&B online run could not start: %s", error)
    logger.info("W&B finds no key (WANDB_API_KEY, or `wandb login`): the run is kept offline")
    return ["offline"]


def _decided_by() -> str:
    return f"{_MODE}={os.environ[_MODE]}" if _MODE in os.environ else "W&B's settings file"


def _start(run_dir: Path, config: RunConfig) -> wandb.Run | None:
    """Start a run in the first of `modes` that works. Returns None if none does."""
    try:
        wanted = modes()
    except Exception as error:  # W&B refuses a WANDB_MODE that it does not know; nothing of it may stop a run
        logger.warning("W&B is not used: %s", " ".join(str(error).split()))
        return None
    for mode in wanted:
        settings = wandb.Settings(
            console="off",  # the live console repaints, so that its output is no log
            silent=True,
            init_timeout=INIT_TIMEOUT_S,
            login_timeout=INIT_TIMEOUT_S,
            finish_timeout=FINISH_TIMEOUT_S,
        )
        try:
            return wandb.init(
                project=config.logging.project,
                name=f"{config.name}/{run_dir.name}",
                id=_run_id(run_dir) + ("-offline" if mode != wanted[0] else ""),  # the service still holds the first
                resume="allow" if mode == "online" else None,
                dir=None if os.environ.get("WANDB_DIR") else str(run_dir),  # WANDB_DIR is W&B's own word for it
                config=as_tree(config),
                mode=mode,
                settings=settings,
            )
        except Exception as error:  # as above
            logger.warning("W&B %s run could not start: %s", mode, error)
    return None


def _run_id(run_dir: Path) -> str:
    """Return the id of the run directory, so that a resumed run continues its curves."""
    path = run_dir / "wandb_id.txt"
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:12])
    return path.read_text().strip()
