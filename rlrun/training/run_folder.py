"""A run folder that is held open: if somebody deletes or renames it, the run says so, and where its checkpoints are."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.config.recorded import CHECKPOINTS
from rlrun.data import checkpoint_folder
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

_DELETED = " (deleted)"  # what Linux appends to the name of an open file that has none


class RunFolder:
    """Held from its construction to `close`.

    Example::

        folder = RunFolder(run_dir, resume_command)
        folder.place        # run_dir; another path once it is renamed; None once it is deleted
    """

    def __init__(self, path: Path, command_of: Callable[[Path], str] = lambda folder: ""):
        """command_of: returns the command that resumes the run in a folder; "": it cannot be resumed."""
        self.path, self._command_of = path, command_of
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    @property
    def place(self) -> Path | None:
        """Where the folder is now; None: it is deleted, or where it is cannot be told."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.fstat(self._file), os.stat(self.path)):
                return self.path
        with suppress(OSError):
            now = os.readlink(f"/proc/self/fd/{self._file}")
            if not now.endswith(_DELETED) and Path(now).is_dir():
                return Path(now)
        return None

    @property
    def resume(self) -> str | None:
        """The command that resumes the run where its folder is now; None without a checkpoint."""
        place = self.place
        if place is None or checkpoint_folder.latest(place / CHECKPOINTS) is None:
            return None
        return self._command_of(place) or None

    def loss(self) -> RunError | None:
        """Return the error that ends the run if its folder is not in its place; None if it is."""
        place = self.place
        if place == self.path:
            return None
        if place is None:
            what, remedy = (
                "it was deleted",
                "Restore it and resume the run, or start anew; nothing is wrong with the disk.",
            )
            cause = "What was in it is lost, with every checkpoint."
        else:
            what, remedy = (
                f"it was renamed to {place}",
                f"Resume the run there, or after it has its name {self.path} again.",
            )
            newest = checkpoint_folder.latest(place / CHECKPOINTS)
            whole = (
                "it holds no checkpoint"
                if newest is None
                else f"its checkpoints are whole, the newest is {newest.name}"
            )
            cause = f"Nothing was lost there: {whole}."
        failure = RunError(
            f"The run folder {self.path} is gone: {what}.",
            key="output_dir",
            value=str(self.path),
            cause=cause,
            remedy=remedy,
            exit_status=ExitStatus.storage,
            row="run-folder-gone",
        )
        failure.resume = self.resume
        return failure

    def require(self) -> None:
        """Raise RunError if the folder is not in its place."""
        failure = self.loss()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Close it. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
