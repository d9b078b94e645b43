"""Search for the latest valid checkpoint, and the corruption of newer ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rlrun.actor.process_group import Ranks
from rlrun.data import checkpoint_folder
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.storage_error import storage_failure
from rlrun.system.text import first_of

T = TypeVar("T")
_SHOWN = 3  # damaged files of one checkpoint


class CheckpointSearch:
    """A search by all actor ranks together, which share the reading of files.

    Example::

        found, skipped = CheckpointSearch(ranks, is_content_read=True).latest_valid(run_dir / "checkpoints")
    """

    def __init__(self, ranks: Ranks, is_content_read: bool, progress: Callable[[], None] = lambda: None):
        """is_content_read: False: compare only names and sizes. progress: called after each piece of a file."""
        self._ranks = ranks
        self._is_content_read = is_content_read
        self._progress = progress

    def latest_valid(self, root: Path, at_most: Path | None = None) -> tuple[Path | None, list[str]]:
        """Return the latest valid checkpoint under `root` and a sentence on each newer one, or None.

        at_most: the newest step to consider. Raises RunError if there are checkpoints but all are damaged.
        """
        skipped: list[str] = []
        for folder in self._candidates(root, at_most):
            self._agreed(lambda: checkpoint_folder.require_format(folder))  # noqa: B023  (called at once)
            corruption = self.corruption(folder)
            if not corruption:
                return folder, skipped
            skipped.append(f"skipped {folder}: {first_of(corruption, _SHOWN, '; ')}")
        if skipped:
            raise RunError(
                f"No checkpoint in {root} is valid.",
                key="checkpoint.resume",
                value=str(root),
                cause="\n".join(skipped),
                remedy="Copy one again from an undamaged source. To start anew, set checkpoint.resume=null or another "
                "output_dir.",
                exit_status=ExitStatus.bad_input,
            )
        return None, []

    def verify(self, folder: Path) -> None:
        """Raise RunError if this checkpoint is missing or damaged."""
        if not self._ranks.gather(folder.is_dir())[0]:
            raise RunError(
                f"There is no checkpoint at {folder}.",
                key="checkpoint.resume",
                value=str(folder),
                remedy="Correct the path, or set checkpoint.resume=auto.",
                exit_status=ExitStatus.bad_input,
            )
        self._agreed(lambda: checkpoint_folder.require_format(folder))
        corruption = self.corruption(folder)
        if not corruption:
            return
        other = next(
            (candidate for candidate in self._candidates(folder.parent, None) if not self.corruption(candidate)), None
        )
        remedy = "Copy it again from an undamaged source."
        if other is not None:
            remedy = f"Use the newest undamaged one beside it: checkpoint.resume={other}."
        raise RunError(
            f"The checkpoint {folder} is damaged.",
            key="checkpoint.resume",
            value=str(folder),
            cause=first_of(corruption, _SHOWN, "; "),
            remedy=remedy,
            exit_status=ExitStatus.bad_input,
        )

    def corruption(self, folder: Path) -> list[str]:
        """Return the damage by file, equal on all ranks. Raises RunError if a rank is refused to read."""
        share = (self._ranks.rank, self._ranks.world_size)
        damages_of_ranks = self._agreed(
            lambda: checkpoint_folder.find_corruption(folder, self._is_content_read, share, self._progress)
        )
        return list(dict.fromkeys(damage for part in damages_of_ranks for damage in part))

    def _agreed(self, read: Callable[[], T]) -> list[T]:
        """Return the results of all ranks. Raises the first RunError of any rank on all of them."""
        outcome: T | RunError
        try:
            outcome = read()
        except RunError as error:
            outcome = error
        except (OSError, RuntimeError) as error:
            worker = f"actor/{self._ranks.rank}"
            folders = [str(error.filename)] if isinstance(error, OSError) and error.filename else []
            explained = storage_failure(error, f"{worker}, which looks for checkpoints,", folders, worker)
            if explained is None:
                raise
            outcome = explained
        outcomes = self._ranks.gather(outcome)
        for result in outcomes:
            if isinstance(result, RunError):
                raise result
        return outcomes

    def _candidates(self, root: Path, at_most: Path | None) -> list[Path]:
        """Return the checkpoints that rank 0 sees, newest first, including incomplete ones."""
        checkpoints = self._agreed(lambda: checkpoint_folder.list_all(root))[0]
        if at_most is not None:
            checkpoints = checkpoints[: checkpoints.index(at_most) + 1] if at_most in checkpoints else [at_most]
        return checkpoints[::-1]
