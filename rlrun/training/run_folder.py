"""The folder of a run: it is held open, so that a run tells its loss; what a former run left there is moved aside."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.config.recorded import CHECKPOINTS
from rlrun.config.schema import RunConfig
from rlrun.data import checkpoint_folder
from rlrun.data.recording import FOLDER
from rlrun.observability import run_files
from rlrun.observability.run_files import read_metrics
from rlrun.system.errors import ExitStatus, RunError

_DELETED = " (deleted)"  # what Linux appends to the name of an open file that has none
_OF_A_RUN = (
    *(run_files.CONFIG, run_files.CONFIG_DIFF, run_files.PLAN, run_files.PROVENANCE, run_files.METRICS),
    *(run_files.NOTES, run_files.EPISODES, run_files.LOSSES, run_files.EVALUATIONS, run_files.TIMELINE),
    *(run_files.REPORT, run_files.VIDEOS, run_files.PROFILE, run_files.ALARMS, CHECKPOINTS, FOLDER),
    *("policy", "first_policy", "evaluation.json", "tensorboard", "wandb", "wandb_id.txt"),
)


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


def new_folder(wanted: Path) -> Path:
    """Make a folder that nobody else has: `wanted`, or with -2, -3, … behind its name. Returns its absolute path.

    Two runs that begin in the same second, as the tasks of a SLURM array do, each get their own.
    """
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder.absolute()


def set_aside(run_dir: Path, config: RunConfig) -> str | None:
    """Move what a former run left into former_<N> of the run folder, if this run starts anew. Returns a sentence.

    Returns None if the run resumes, or if there is nothing that it could mix with. Raises OSError.
    """
    wanted, checkpoints = config.checkpoint.resume, checkpoint_folder.named(run_dir / CHECKPOINTS)
    if wanted not in (None, "auto") or (wanted == "auto" and checkpoints):
        return None
    steps = [int(record["step"]) for record in read_metrics(run_dir)]
    if not steps and not checkpoints:
        return None
    place = run_dir / f"{run_files.FORMER}{1 + run_files.num_former(run_dir)}"
    place.mkdir()
    for name in (*_OF_A_RUN, *(path.name for path in run_dir.glob("config_to_step_*.yaml"))):
        if (run_dir / name).exists() and not _is_used(run_dir / name, config):
            os.replace(run_dir / name, place / name)
    held = f"{run_files.METRICS} holds {len(steps)} step{'' if len(steps) == 1 else 's'}"
    why = "there is no checkpoint" if wanted == "auto" else "checkpoint.resume=null"
    found = f"{held}, but {why}" if steps else f"there are {len(checkpoints)} checkpoints, but {why}"
    return f"{found}: the run starts at step 1; what the former run left is now in {place}"


def _is_used(place: Path, config: RunConfig) -> bool:
    """Return whether the new run begins with something in there."""
    named = [Path(path).absolute() for path in (config.policy.path, config.demos.path) if path is not None]
    return any(path.is_relative_to(place.absolute()) for path in named)


def steps_to_repeat(run_dir: Path, step: int) -> str:
    """Return what follows "resumed at step 50" if later steps are recorded, which the run repeats; else ""."""
    last = max((int(record["step"]) for record in read_metrics(run_dir)), default=0)
    return (
        f"; {run_files.METRICS} holds steps up to {last}, of which those after {step} are repeated"
        if last > step
        else ""
    )
