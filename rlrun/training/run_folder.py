"""The folder of a run: held open, so that its loss is detected; files of a former run are moved aside."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.config import provenance
from rlrun.config.provenance import POLICY_CONFIG, changes, selected
from rlrun.config.recorded import CHECKPOINTS, read_config
from rlrun.config.reference import all_keys
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import LrSchedule, MinibatchOf, RunConfig
from rlrun.data import checkpoint_folder
from rlrun.data.recording import RECORDING_FOLDER
from rlrun.observability import run_files
from rlrun.observability.run_files import read_metrics
from rlrun.system.errors import ExitStatus, RunError

_DELETED = " (deleted)"  # what Linux appends to the name of an open file that has none
_OF_A_RUN = (
    *(run_files.CONFIG, run_files.CONFIG_DIFF, run_files.PLAN, run_files.PROVENANCE, run_files.METRICS),
    *(run_files.NOTES, run_files.EPISODES, run_files.LOSSES, run_files.EVALUATIONS, run_files.TIMELINE),
    *(run_files.STARTS, run_files.WORLD, run_files.CERTIFICATIONS, run_files.DATASET),
    *(run_files.REPORT, run_files.VIDEOS, run_files.PROFILE, run_files.ALARMS, CHECKPOINTS, RECORDING_FOLDER),
    *("policy", "first_policy", "evaluation.json", "tensorboard", "wandb", "wandb_id.txt"),
)
_OF_EVERY_RESUME = ("output_dir", "checkpoint.resume")  # say where a run goes on, not how
_SAME_LR = 0.01  # a smaller relative change of the learning rate is none
_BATCH = (
    *("env.num_envs", "algorithm.horizon", "algorithm.rollout_epochs"),
    *("algorithm.update_epochs", "algorithm.global_batch_size"),
)
_FILLING = "algorithm.minibatch_of"  # runs that did not have it were as by default
_FORWARD = ("actor.num_workers", "actor.micro_batch_size")
_LR = ("actor.lr", "actor.lr_schedule", "actor.min_lr_ratio", "num_steps")


def refuse_trained(run_dir: Path) -> None:
    """Raise RunError if a run trained in a folder that an evaluation would write to.

    Its starts and evaluations would count as the run's own.
    """
    metrics = run_dir / run_files.METRICS
    if metrics.is_file() and metrics.stat().st_size:  # evaluations leave an empty one
        raise RunError(
            "A run trained in this folder, whose records an evaluation would change.",
            key="output_dir",
            value=str(run_dir),
            cause=f"{metrics} has training steps.",
            remedy=f"Name another folder, as output_dir={run_dir}/certified, or leave output_dir out.",
            exit_status=ExitStatus.bad_config,
        )


class RunFolder:
    """Held from its construction to `close`.

    Example::

        folder = RunFolder(run_dir, resume_command)
        folder.place        # run_dir; another path once it is renamed; None once it is deleted
    """

    def __init__(self, path: Path, command_of: Callable[[Path], str] = lambda folder: ""):
        """command_of: returns the command that resumes the run in a folder; "": it cannot be resumed."""
        self.path = path
        self._command_of = command_of
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def warn_if_idle(self, warn: Callable[[str], None]) -> None:
        """Warn if none of the run's training steps, two or more, made an optimizer step."""
        made = [line["num_optimizer_steps"] for line in read_metrics(self.path) if "num_optimizer_steps" in line]
        if len(made) > 1 and not any(made):
            warn(
                f"no optimizer step was made in {len(made)} training steps, so that nothing was learned: is the "
                "warm-up of the algorithm longer than the run?"
            )

    @property
    def place(self) -> Path | None:
        """The present path of the folder; None: it is deleted, or its path is unknown."""
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
            what = "it was deleted"
            remedy = "Restore it and resume the run, or start anew; nothing is wrong with the disk."
            cause = "What was in it is lost, with every checkpoint."
        else:
            what = f"it was renamed to {place}"
            remedy = f"Resume the run there, or after it has its name {self.path} again."
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


def archive_previous_run(run_dir: Path, config: RunConfig) -> str | None:
    """Move the files of a former run into former_<N> of the run folder, if this run starts anew. Returns a sentence.

    Returns None if the run resumes, or if there is nothing that it could mix with. Raises OSError.
    """
    wanted = config.checkpoint.resume
    checkpoints = checkpoint_folder.list_all(run_dir / CHECKPOINTS)
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
    content = f"{held}, but {why}" if steps else f"there are {len(checkpoints)} checkpoints, but {why}"
    return f"{content}: the run starts at step 1; what the former run left is now in {place}"


def _is_used(place: Path, config: RunConfig) -> bool:
    """Return whether the new run begins with something in there."""
    named = [Path(path).absolute() for path in (config.policy.path, config.demos.path) if path is not None]
    return any(path.is_relative_to(place.absolute()) for path in named)


def steps_to_repeat(run_dir: Path, step: int) -> str:
    """Return the words after "resumed at step 50" if later steps are recorded, which the run repeats; else ""."""
    last = max((int(record["step"]) for record in read_metrics(run_dir)), default=0)
    return (
        f"; {run_files.METRICS} holds steps up to {last}, of which those after {step} are repeated"
        if last > step
        else ""
    )


def changed_keys(checkpoint: Path, config: RunConfig) -> list[str]:
    """Return a sentence on each key that differs from what made the checkpoint. Example: "actor.lr was 1, is 2"."""
    free = [key.path for key in all_keys() if key.is_free]
    changed = changes(_tree_of(checkpoint), provenance.as_tree(config), free)
    return [sentence for key, sentence in changed if key not in _OF_EVERY_RESUME]


def changed_course(checkpoint: Path, config: RunConfig, step: int) -> list[str]:
    """Return sentences on another batch, and on a learning rate that leaves its course. step: steps done."""
    was = _tree_of(checkpoint)
    now = provenance.as_tree(config)
    courses = _of_batch, _of_forward_pass, _of_replay
    return [*(text for course in courses for text in course(was, now)), *_of_learning_rate(was, now, step)]


def for_more_steps(command: str, config: RunConfig, step: int) -> str:
    """Return the command that trains twice as many steps; it keeps a learning rate that has fallen."""
    longer = f"{command} num_steps={2 * step}"
    if config.max_minutes is not None:
        longer += " max_minutes=null"  # the minutes that have passed count as well
    actor = config.actor
    if actor.lr_schedule is LrSchedule.constant:
        return f"for more steps: {longer}"
    last = actor.lr_schedule.factor(max(0, step - 1) / max(1, config.num_steps), actor.min_lr_ratio)
    again = actor.lr_schedule.factor(0.5, actor.min_lr_ratio)
    kept = f"actor.lr_schedule=constant actor.lr={last * actor.lr:.3g}"
    if ALGORITHMS.get(config.algorithm.name).has_critic:
        kept += f" actor.value_lr={last * actor.value_lr:.3g}"
    return (
        f"for more steps: {longer} {kept}\n(it keeps the last learning rate, {last * actor.lr:.3g}; "
        f"{actor.lr_schedule.name} over twice as many steps would go on with {again * actor.lr:.3g})"
    )


def _tree_of(checkpoint: Path) -> Mapping[str, Any]:
    """Return the configuration that made a checkpoint; {} if it does not hold one."""
    file = checkpoint / "policy" / POLICY_CONFIG
    return read_config(file).whole if file.is_file() else {}


def _both(was: Mapping[str, Any], now: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[list[Any], list[Any]] | None:
    """Return the values of keys then and now; None if all are equal, or if one did not exist then."""
    before, after = ([selected(tree, key) for key in keys] for tree in (was, now))
    return None if before == after or None in before else (before, after)


def _of_batch(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    filling = [selected(tree, _FILLING) or MinibatchOf.chunk_steps.name for tree in (was, now)]
    values = [
        [*(selected(tree, key) for key in _BATCH), own_filling]
        for tree, own_filling in zip((was, now), filling, strict=True)
    ]
    if values[0] != values[1] and None not in values[0]:
        before, after = map(_batch_in_words, values)
        yield f"the batch changes: a training step learned from {before}; from now on it learns from {after}"


def _batch_in_words(values: list[Any]) -> str:
    num_envs, horizon, rollout_epochs, update_epochs, size, filling = values
    samples = num_envs * horizon * rollout_epochs
    optimizer_steps = update_epochs * -(-samples // max(1, size))
    return (
        f"{samples} chunk steps ({num_envs} envs x {horizon} x {rollout_epochs}) in {optimizer_steps} optimizer steps "
        f"of {min(size, samples)}{'' if filling == MinibatchOf.chunk_steps.name else f', counted in {filling}'}"
    )


def _of_forward_pass(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    settings = _both(was, now, _FORWARD)
    if settings is not None:
        before, after = (f"{ranks * size} ({ranks} ranks x {size})" for ranks, size in settings)
        yield f"the chunk steps of a forward pass over all actor ranks were {before}, are {after}"


def _of_replay(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    settings = _both(was, now, ("actor.num_workers",))
    if settings is None or ALGORITHMS.get(selected(now, "algorithm.name")).is_on_policy:
        return
    (before,), (after,) = settings
    if after < before:
        yield f"of the replay buffers of {before} actor ranks, those of the first {after} go on; the others are left"
    else:
        yield f"{after - before} of {after} actor ranks begin with an empty replay buffer, and draw from few at first"


def _of_learning_rate(was: Mapping[str, Any], now: Mapping[str, Any], step: int) -> Iterator[str]:
    settings = _both(was, now, _LR)
    if settings is None or step == 0 or {settings[0][1], settings[1][1]} == {LrSchedule.constant.name}:
        return
    last, expected = (_lr(settings[0], at) for at in (step - 1, step))
    following = _lr(settings[1], step)
    if any(abs(following - usual) <= _SAME_LR * max(following, usual) for usual in (last, expected)):
        return
    verb = "rises" if following > last else "falls"
    factor = f", {following / last:.3g} times as much" if last > 0 else ""
    yield (
        f"the learning rate {verb} from {last:.3g} in step {step} to {following:.3g} in step {step + 1}{factor}: "
        f"actor.lr_schedule={settings[1][1]} counts from the start of the run over num_steps={settings[1][3]}"
    )


def _lr(values: list[Any], step: int) -> float:
    lr, schedule, min_lr_ratio, num_steps = values
    return float(lr * LrSchedule[schedule].factor(step / max(1, num_steps), min_lr_ratio))
