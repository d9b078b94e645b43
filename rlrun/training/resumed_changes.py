"""What a resumed run does otherwise than the run that made its checkpoint, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.config import provenance
from rlrun.config.lr_schedule import decayed
from rlrun.config.provenance import POLICY_CONFIG, changes, selected
from rlrun.config.recorded import read_config
from rlrun.config.reference import all_keys
from rlrun.config.schema import LrSchedule, RunConfig

_OF_EVERY_RESUME = ("output_dir", "checkpoint.resume")  # say where a run goes on, not how
_SAME_LR = 0.01  # a smaller relative change of the learning rate is none
_BATCH = (
    *("env.num_envs", "algorithm.horizon", "algorithm.rollout_epochs"),
    *("algorithm.update_epochs", "algorithm.global_batch_size"),
)
_FORWARD = ("actor.num_workers", "actor.micro_batch_size")
_LR = ("actor.lr", "actor.lr_schedule", "actor.min_lr_ratio", "num_steps")


def changed_keys(checkpoint: Path, config: RunConfig) -> list[str]:
    """Return a sentence on each key that differs from what made the checkpoint. Example: "actor.lr was 1, is 2"."""
    free = [key.path for key in all_keys() if key.is_free]
    found = changes(_tree_of(checkpoint), provenance.as_tree(config), free)
    return [sentence for key, sentence in found if key not in _OF_EVERY_RESUME]


def changed_course(checkpoint: Path, config: RunConfig, step: int) -> list[str]:
    """Return sentences on another batch, and on a learning rate that leaves its course. step: steps done."""
    was, now = _tree_of(checkpoint), provenance.as_tree(config)
    return [*_of_batch(was, now), *_of_forward_pass(was, now), *_of_learning_rate(was, now, step)]


def for_more_steps(command: str, config: RunConfig, step: int) -> str:
    """Return the command that trains twice as many steps; it keeps a learning rate that has fallen."""
    longer, actor = f"{command} num_steps={2 * step}", config.actor
    if actor.lr_schedule is LrSchedule.constant:
        return f"for more steps: {longer}"
    last = decayed(actor.lr_schedule, max(0, step - 1) / max(1, config.num_steps), actor.min_lr_ratio)
    again = decayed(actor.lr_schedule, 0.5, actor.min_lr_ratio)
    kept = f"actor.lr_schedule=constant actor.lr={last * actor.lr:.3g} actor.value_lr={last * actor.value_lr:.3g}"
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
    found = _both(was, now, _BATCH)
    if found is not None:
        before, after = map(_batch_in_words, found)
        yield f"the batch changes: a training step learned from {before}; from now on it learns from {after}"


def _batch_in_words(values: list[int]) -> str:
    num_envs, horizon, rollout_epochs, update_epochs, size = values
    samples = num_envs * horizon * rollout_epochs
    optimizer_steps = update_epochs * -(-samples // max(1, size))
    return (
        f"{samples} chunk steps ({num_envs} envs x {horizon} x {rollout_epochs}) in {optimizer_steps} optimizer steps "
        f"of {min(size, samples)}"
    )


def _of_forward_pass(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    found = _both(was, now, _FORWARD)
    if found is not None:
        before, after = (f"{ranks * size} ({ranks} ranks x {size})" for ranks, size in found)
        yield f"the chunk steps of a forward pass over all actor ranks were {before}, are {after}"


def _of_learning_rate(was: Mapping[str, Any], now: Mapping[str, Any], step: int) -> Iterator[str]:
    found = _both(was, now, _LR)
    if found is None or step == 0 or {found[0][1], found[1][1]} == {LrSchedule.constant.name}:
        return
    last, expected = (_lr(found[0], at) for at in (step - 1, step))
    following = _lr(found[1], step)
    if any(abs(following - usual) <= _SAME_LR * max(following, usual) for usual in (last, expected)):
        return
    verb = "rises" if following > last else "falls"
    factor = f", {following / last:.3g} times as much" if last > 0 else ""
    yield (
        f"the learning rate {verb} from {last:.3g} in step {step} to {following:.3g} in step {step + 1}{factor}: "
        f"actor.lr_schedule={found[1][1]} counts from the start of the run over num_steps={found[1][3]}"
    )


def _lr(values: list[Any], step: int) -> float:
    lr, schedule, min_lr_ratio, num_steps = values
    return float(lr * decayed(LrSchedule[schedule], step / max(1, num_steps), min_lr_ratio))
