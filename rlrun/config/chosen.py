"""Counts that follow from others: keys that are null in the composed configuration, and get a number once, here.

The dataclasses of the schema hold the usual number. A number that a file or an argument gives stays, and is checked.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from rlrun.config.schema import ClusterKind, RunConfig

CHOSEN = {  # section -> its keys
    "env": ("num_workers",),
    "rollout": ("num_workers",),
    "actor": ("num_workers", "micro_batch_size"),
    "sft": ("lr_warmup_steps",),
}


def nullable(section: str) -> list[tuple[str, Any, Any]]:
    """Return the fields that make the chosen keys of a section null by default, for make_dataclass."""
    return [(key, int | None, field(default=None)) for key in CHOSEN.get(section, ())]


def choose(config: RunConfig) -> None:
    """Replace each null of the chosen keys. Counts are whatever the user wrote: their ranges are checked later."""
    usual, samples = RunConfig(), config.algorithm.global_batch_size
    workers = 1 if config.cluster.kind is ClusterKind.local else usual.actor.num_workers
    _fill(config.env, "num_workers", _divisor(workers, config.env.num_envs))
    _fill(config.rollout, "num_workers", min(workers, max(1, config.env.num_workers)))
    _fill(config.actor, "num_workers", _divisor(workers, config.env.num_envs, samples, config.sft.batch_size))
    rows = samples // max(1, config.actor.num_workers)
    _fill(config.actor, "micro_batch_size", _divisor(usual.actor.micro_batch_size, rows))
    _fill(config.sft, "lr_warmup_steps", max(0, min(usual.sft.lr_warmup_steps, config.sft.num_steps // 4)))


def _fill(section: Any, key: str, value: int) -> None:
    if getattr(section, key) is None:
        setattr(section, key, value)


def _divisor(at_most: int, *numbers: int) -> int:
    """Return the largest number up to `at_most` that divides all others."""
    return next(one for one in range(at_most, 0, -1) if not any(number % one for number in numbers))
