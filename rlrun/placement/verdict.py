"""What a plan means for its user, in sentences: whether it fits, how long it takes, what idles, what to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.placement.budget import Budget
from rlrun.placement.compute_time import REACHED
from rlrun.placement.plan import Plan

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
