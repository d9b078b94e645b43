"""The checkpoints of a run: which one it resumes from, and the one that a lost actor goes back to."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rlrun.data import checkpoint_folder
from rlrun.observability.disk_speed import folder_bytes
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus
from rlrun.training.progress import Progress
from rlrun.training.session import Session

CHECKPOINTS = "checkpoints"
_COPIES = 4.0  # of a policy in a checkpoint: itself twice, and two moments of the optimizer


class Checkpoints:
    """Saves and restores the actor together with the driver's counters."""

    def __init__(self, session: Session):
        self._session = session
        self.newest: Path | None = None  # that was saved or restored
        self.step: int | None = None  # of `newest`

    def to_resume(self) -> Path | None:
        """The checkpoint that `checkpoint.resume` names; None: a fresh start. Raises RunError."""
        wanted = self._session.config.checkpoint.resume
        if wanted is None:
            return None
        if wanted == "auto":
            return self.newest_whole(self._session.run_dir / CHECKPOINTS)
        if checkpoint_folder.is_checkpoint(Path(wanted)):
            with self._session.phase("verify checkpoints"):
                self._session.controller.require_whole(wanted)
            return Path(wanted)
        found = self.newest_whole(Path(wanted))
        if found is None:
            raise RunError(
                f"There is no checkpoint in {wanted}.",
                key="checkpoint.resume",
                value=wanted,
                remedy="Name a run's checkpoints folder, or one checkpoint in it; null starts afresh.",
                exit_status=ExitStatus.bad_input,
                row="no-checkpoint-to-resume",
            )
        return found

    def newest_whole(self, root: Path, at_most: Path | None = None) -> Path | None:
        """The newest whole checkpoint under `root`, with a warning for each damaged one that is newer; None: there is
        none at all. at_most: the newest to look at."""
        with self._session.phase("verify checkpoints"):
            found, skipped = self._session.controller.newest_checkpoint(
                str(root), str(at_most) if at_most is not None else None
            )
        for warning in skipped:
            self._session.console.warning(warning)
        return Path(found) if found else None

    def restore(self, checkpoint: Path) -> Progress:
        """Bring the loaded actor to where the checkpoint was written; returns the counters of that moment."""
        progress = Progress.read(self._session.controller.restore(str(checkpoint)), checkpoint)
        self.newest, self.step = checkpoint, progress.step
        return progress

    def save(self, progress: Progress, is_best: bool) -> Path:
        """Write a checkpoint, which is complete or absent; returns its folder."""
        session, what = self._session, f"checkpoint of step {progress.step}"
        usual_s = session.watchdog.budgets.usual("driver", "save", False)  # None: the first time
        root = session.run_dir / CHECKPOINTS
        with session.phase("save") as saving, session.disk.watched(what, self.expected_bytes(progress), usual_s):
            folder = Path(session.controller.save(str(root), asdict(progress), is_best))
        self.newest, self.step = folder, progress.step
        session.disk.judge(what, folder_bytes(folder), saving.seconds)
        return folder

    def expected_bytes(self, progress: Progress) -> float:
        """Of a checkpoint: as the newest one, or an estimate from the first policy."""
        if self.newest is not None:
            return folder_bytes(self.newest)
        return _COPIES * folder_bytes(Path(progress.base_policy))
