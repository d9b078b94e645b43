"""Settings that would make training faster and still fit, by the estimates of the budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlrun.config.schema import RunConfig
from rlrun.placement.budget import AcceleratorBudget, Budget, budget
from rlrun.placement.inventory import GIGABYTE, Inventory
from rlrun.placement.plan import Plan
from rlrun.system.errors import RunError


def suggestions(config: RunConfig, plan: Plan, inventory: Inventory) -> Iterator[str]:
    """Yield one sentence per setting; none for actors without accelerators, or with accelerators of unknown memory.

    Example: "actor.activation_checkpointing=false fits: 28.5 of 80 GB, an update in 712 s instead of 949 s"
    """
    if not all(slot.accelerators for slot in plan.of("actor")):
        return
    present = budget(config, plan, inventory)
    if any(accelerator.memory_bytes is None for accelerator in present.accelerators):
        return  # memory of unknown size: nothing can be suggested
    if config.actor.activation_checkpointing:
        without = replace(config, actor=replace(config.actor, activation_checkpointing=False))
        sums = _fitting(without, plan, inventory)
        if sums is not None:
            yield f"actor.activation_checkpointing=false fits: {_peak(sums, plan)}{_faster(present, sums)}"
    largest, sums = _largest_micro_batch(config, plan, inventory)
    if sums is not None:
        faster = _faster(present, sums) or ", with fewer and larger kernels"
        yield f"actor.micro_batch_size={largest} fits: {_peak(sums, plan)}{faster}"


def _fitting(config: RunConfig, plan: Plan, inventory: Inventory) -> Budget | None:
    try:
        return budget(config, plan, inventory)
    except RunError:
        return None


def _largest_micro_batch(config: RunConfig, plan: Plan, inventory: Inventory) -> tuple[int, Budget | None]:
    """Double the micro-batch as long as it fits and has rows enough. Returns the size and its budget, None if none."""
    rows = config.algorithm.global_batch_size // config.actor.num_workers
    found, size = None, config.actor.micro_batch_size
    while 2 * size <= rows:
        sums = _fitting(replace(config, actor=replace(config.actor, micro_batch_size=2 * size)), plan, inventory)
        if sums is None:
            break
        found, size = sums, 2 * size
    return size, found


def _peak(sums: Budget, plan: Plan) -> str:
    places = {(slot.node, index) for slot in plan.of("actor") for index in slot.accelerators}
    fullest = max(
        (one for one in sums.accelerators if (one.node, one.index) in places),
        key=lambda one: one.peak_bytes / (one.memory_bytes or 1),
    )
    return _of(fullest)


def _of(accelerator: AcceleratorBudget) -> str:
    return f"{accelerator.peak_bytes / GIGABYTE:.1f} of {(accelerator.memory_bytes or 0) / GIGABYTE:.0f} GB"


def _faster(present: Budget, other: Budget) -> str:
    if present.times is None or other.times is None or other.times.update_s >= present.times.update_s:
        return ""
    return f", an update in {other.times.update_s:,.0f} s instead of {present.times.update_s:,.0f} s"
