"""Verdict on a plan, in sentences: whether it fits, how long a step takes, idle roles, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data.fit import DatasetInfo, Fit, World, compare
from rlrun.data.lerobot.reader import dataset_info
from rlrun.data.messages import PolicySpaces
from rlrun.placement.budget import AcceleratorBudget, Budget, budget
from rlrun.placement.inventory import GIGABYTE, Inventory
from rlrun.placement.plan import Plan
from rlrun.placement.step_cost import REACHED
from rlrun.policies.spec import policy_spec
from rlrun.system.errors import RunError

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400


def verdict(config: RunConfig, plan: Plan, budget: Budget) -> str:
    """Return the first line of a plan that fits.

    Example: "fits; 1,000 training steps take about 16.5 days of computing; simulation unknown; 4 of 8 RTX 4090 idle"
    """
    steps = f"{config.num_steps:,} training steps"
    time_s = None if budget.times is None else config.num_steps * (budget.times.act_s + budget.times.update_s)
    known = [f"the time of {steps} is unknown"]
    if time_s is not None:
        known = [f"{steps} take about {_time(time_s)} of computing", "simulation unknown"]
    return "; ".join(["fits", *known, *_idle(plan)])


def warnings(config: RunConfig, plan: Plan) -> Iterator[str]:
    """Yield a sentence on each thing that probably keeps a plan that fits from running."""
    own = [slot for slot in plan.of("env") if slot.interpreter is None]
    if own and simulator_spec(config.env).has_own_python:
        groups = {planned.node.name: planned.group for planned in plan.nodes}
        group = groups.get(own[0].node, "<group>")
        yield (
            f"{config.env.simulator} is installed under a Python of its own, and env workers run under rlrun's: set "
            f"placement.nodes.{group}.python to its interpreter"
        )


def remarks(config: RunConfig, plan: Plan, budget: Budget) -> Iterator[str]:
    """Yield sentences on where the time of a training step goes."""
    times = budget.times
    if times is None:
        return
    yield (
        f"A training step computes about {_time(times.act_s)} on rollout workers ({times.act_model}) and "
        f"{_time(times.update_s)} on the actor ({times.update_model}), at {REACHED:.0%} of their peak at best."
    )
    acting = {(slot.node, index) for slot in plan.of("rollout") for index in slot.accelerators}
    learning = {(slot.node, index) for slot in plan.of("actor") for index in slot.accelerators}
    if learning - acting and acting:
        yield (
            f"{len(learning - acting)} of {len(learning)} accelerators of the actor wait while rollout workers act: "
            "more rollout workers would use them."
        )
    every_s = config.checkpoint.every_steps * (times.act_s + times.update_s)
    if every_s > 2 * HOUR_S:
        yield f"A checkpoint every {config.checkpoint.every_steps} steps is one in {_time(every_s)} of computing."


def _idle(plan: Plan) -> Iterator[str]:
    used = {(slot.node, index) for slot in plan.slots for index in slot.accelerators}
    there: Counter[str] = Counter()
    free: Counter[str] = Counter()
    for planned in plan.nodes:
        for index, accelerator in enumerate(planned.node.accelerators):
            there[accelerator.model] += 1
            free[accelerator.model] += (planned.node.name, index) not in used
    for model, count in free.items():
        if count:
            yield f"{count} of {there[model]} {model} idle"


def _time(seconds: float) -> str:
    """Example: 1_425_000 -> "16.5 days"."""
    for unit, length in (("days", DAY_S), ("hours", HOUR_S), ("minutes", MINUTE_S)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


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


def planned_fit(config: RunConfig) -> Fit | None:
    """Return the comparison; None: the run brings neither, or they are not on this machine."""
    spec, data, policy = policy_spec(config), None, None
    given, demos = config.policy.path, config.demos.path
    if given is not None and Path(given).is_dir():
        policy = PolicySpaces(0, 0, tuple(spec.cameras(Path(given))))
    elif given is None and demos is not None and spec.needs_demonstrations and Path(demos).is_dir():
        try:
            data = dataset_info(config.demos, demos)
        except RunError as error:
            return Fit(refusals=[error])
        policy = _of_new(config, data)
    if policy is None:
        return None
    return compare(data, _world(config), policy, config.policy.cameras if data is None else {})


def _of_new(config: RunConfig, data: DatasetInfo) -> PolicySpaces:
    return PolicySpaces(data.num_actions, data.num_proprio if config.policy.use_proprio else 0, _world(config).cameras)


def _world(config: RunConfig) -> World:
    planned = simulator_spec(config.env).planned_spaces(config.env)
    if not planned.is_exact:
        return World(planned.cameras, None, None, None, image_size=config.env.image_size)
    sizes = planned.num_images, planned.num_proprio, planned.num_actions
    return World(planned.cameras, *sizes, control_hz=planned.control_hz, image_size=config.env.image_size)
