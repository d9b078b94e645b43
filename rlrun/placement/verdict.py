"""Verdict on a plan, in sentences: whether it fits, how long a step takes, idle roles, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rlrun.config.registry import envs_together
from rlrun.config.schema import Precision, RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data.fit import CompatibilityReport, World, compare
from rlrun.data.lerobot.reader import DatasetInfo, dataset_info
from rlrun.edges.spaces import PolicySpaces, Spaces
from rlrun.placement.budget import Budget, budget
from rlrun.placement.choices import choose
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import ROLES, Plan
from rlrun.placement.step_time import PUBLISHED_MFU, StepTimes, device_of
from rlrun.placement.workload import Workload
from rlrun.policies.spec import policy_spec
from rlrun.system.errors import RunError

MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 86_400
WITHOUT_BF16 = ("V100", "Tesla T4", "P100", "RTX 2060", "RTX 2070", "RTX 2080")  # parts of models' names
_WORTH = 0.95  # a choice is suggested if an update takes less than this share of the present one


def verdict(config: RunConfig, plan: Plan, budget: Budget) -> str:
    """Return the first line of a plan that fits.

    Example: "fits; 1,000 training steps take about 5.4 days; 4 of 8 RTX 4090 of sim-0 idle"
    """
    steps = f"{config.num_steps:,} training steps"
    times = budget.times
    if times is None:
        known = f"the time of {steps} is unknown"
    elif times.simulate_s is None:
        known = f"{steps} take about {duration(config.num_steps * times.known_s)} of computing; simulation unknown"
    else:
        known = f"{steps} take about {duration(config.num_steps * times.known_s)}"
    fits = "fits" if budget.is_counted else "cannot say whether it fits, since the policy could not be counted"
    return "; ".join([fits, known, *idle_cards(plan)])


def warnings(config: RunConfig, plan: Plan) -> Iterator[str]:
    """Yield a sentence on each thing that probably keeps a plan that fits from running."""
    yield from _without_bf16(config, plan)
    own = [slot for slot in plan.of("env") if slot.interpreter is None]
    if own and simulator_spec(config.env).process.has_own_python:
        groups = {planned.node.name: planned.group for planned in plan.nodes}
        group = groups.get(own[0].node, "<group>")
        yield (
            f"{config.env.simulator} is installed under a Python of its own, and env workers run under rlrun's: set "
            f"placement.nodes.{group}.python to its interpreter"
        )


def _without_bf16(config: RunConfig, plan: Plan) -> Iterator[str]:
    """Yield the accelerators that would compute in a precision that they lack."""
    precisions = {"actor": config.actor.param_precision, "rollout": config.rollout.precision}
    keys = {"actor": "actor.param_precision", "rollout": "rollout.precision"}
    for role, precision in precisions.items():
        models = sorted({slot.accelerator_model for slot in plan.of(role)})
        lacking = [model for model in models if any(name in model for name in WITHOUT_BF16)]
        if precision is Precision.bf16 and lacking:
            yield f"{', '.join(lacking)} has no bf16, which it computes as slowly as fp32: set {keys[role]}=fp32"


def remarks(config: RunConfig, plan: Plan, budget: Budget, free: Sequence[str]) -> Iterator[str]:
    """Yield sentences on where the time of a training step goes, and on what stays idle.

    free: keys that the plan chose; to choose others is no advice.
    """
    times = budget.times
    if times is not None:
        simulation = "of unknown length" if times.simulate_s is None else f"of {duration(times.simulate_s)}"
        collecting = "" if times.simulate_s is None else f" ({duration(times.collect_s)} together)"
        mfu = f" at {times.mfu_update:.0%} MFU" if times.mfu_update else ""
        yield (
            f"A training step takes about {duration(times.known_s)}: simulation {simulation} and answers of "
            f"{duration(times.act_s)} on {times.act_model} at {times.mfu_act:.0%} MFU{collecting}, the update "
            f"{duration(times.update_s)} on {times.update_model}{mfu}"
            f"{' beside the next collection' if times.collects_beside else ''}, weights {duration(times.sync_s)}."
        )
        published = next((mfu for name, mfu in PUBLISHED_MFU.items() if name in times.update_model), 1.0)
        if times.mfu_update > published:
            yield f"That MFU is above the {published:.0%} published for this accelerator: expect less."
        is_apart = not plan.cards_of("rollout") & plan.cards_of("actor")
        if is_apart and not config.collects_ahead and times.simulate_s is not None:
            yield f"With rlrun.train_async a step would take about {duration(times.overlapped_s)}."
    yield from (text for key, text in idle_roles(config, plan) if key not in free)
    yield from pace(plan)
    every_s = 0.0 if times is None else config.checkpoint.every_steps * times.known_s
    if every_s > 2 * HOUR_S:
        yield f"A checkpoint every {config.checkpoint.every_steps} steps is one in {duration(every_s)}."


def idle_cards(plan: Plan) -> Iterator[str]:
    """Yield what no worker uses. Example: "4 of 8 RTX 4090 of sim-0 idle"."""
    used = plan.cards_of(*ROLES)
    for planned in plan.nodes:
        there: Counter[str] = Counter()
        free: Counter[str] = Counter()
        for index, accelerator in enumerate(planned.node.accelerators):
            there[accelerator.model] += 1
            free[accelerator.model] += (planned.node.name, index) not in used
        yield from (f"{n} of {there[model]} {model} of {planned.node.name} idle" for model, n in free.items() if n)


def pace(plan: Plan) -> Iterator[str]:
    """Yield which accelerator sets the pace of a role on unlike ones."""
    for role in ("actor", "rollout"):
        models = {slot.accelerator_model for slot in plan.of(role) if slot.accelerator_model}
        known = {model: device for model in models if (device := device_of(model)) is not None}
        if len(models) > 1 and known:
            slowest = min(known, key=lambda model: known[model].flops)
            yield f"{slowest} sets the pace of the {role} workers, which wait for one another."


def idle_roles(config: RunConfig, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) on each role that waits for another one by plan, though the machines allow otherwise."""
    envs = plan.of("env")
    rollouts = plan.of("rollout")
    acting = plan.cards_of("rollout")
    learning = plan.cards_of("actor")
    if acting and envs and len(envs) == len(rollouts) and config.rollout.pipeline_stages > 1:
        yield (
            "env.num_workers",
            "Each rollout worker has one env worker, so simulation and answers do not overlap: take twice as many env "
            "workers, or env.num_workers=auto.",
        )
    if acting and learning - acting and not config.collects_ahead:
        yield (
            "rollout.num_workers",
            f"{len(learning - acting)} of {len(learning)} accelerators of the actor wait while rollout workers act: "
            "more rollout workers would use them.",
        )
    time = simulator_spec(config.env).resources.time(config.env)
    is_serial = time is not None and time.env_step_s > 0  # a worker steps its envs one after another
    on_node = Counter(slot.node for slot in envs)
    cores = {planned.node.name: planned.node.num_cpus for planned in plan.nodes}
    per_worker = config.env.num_envs // max(1, len(envs))
    for node, count in on_node.items():
        if is_serial and acting and per_worker > envs_together(config.algorithm) and 2 * count <= cores[node]:
            yield (
                "env.num_workers",
                f"{count} env workers step {per_worker} envs each, one after another, on {cores[node]} cores of "
                f"{node}: more env workers would use them.",
            )


def duration(seconds: float) -> str:
    """Example: 1_425_000 -> "16.5 days"."""
    for unit, length in (("days", DAY_S), ("hours", HOUR_S), ("minutes", MINUTE_S)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def suggestions(work: Workload, plan: Plan, present: StepTimes | None, inventory: Inventory) -> Iterator[str]:
    """Yield a sentence if another micro-batch or share of checkpointed blocks is faster, and fits beside these workers.

    present: times of the plan. Example:
    "actor.micro_batch_size=8 actor.activation_checkpointing=0: 59 of 80 GB, …; an update in 712 s, not 949 s"
    """
    if present is None:
        return
    left = replace(work.config, auto=["actor.micro_batch_size", "actor.activation_checkpointing"])
    try:
        found = choose(work.with_config(left), inventory)
        times = budget(found.work, plan, inventory).times
    except RunError:
        return  # the present choice fits by a little, or not at all
    if times is not None and times.update_s < _WORTH * present.update_s:
        words = found.sentences[0].removeprefix("Chosen: ").removesuffix(".")
        yield f"{words}; an update in {duration(times.update_s)} instead of {duration(present.update_s)}"


def planned_fit(config: RunConfig) -> CompatibilityReport | None:
    """Return the comparison; None: the run brings neither, or they are not on this machine."""
    spec = policy_spec(config)
    data = None
    policy = None
    given = config.policy.path
    demos = config.demos.path
    if given is not None and Path(given).is_dir():
        policy = PolicySpaces(0, 0, tuple(spec.cameras(Path(given))))
    elif given is None and demos is not None and spec.needs_demonstrations and Path(demos).is_dir():
        try:
            data = dataset_info(config.demos, demos)
        except RunError as error:
            return CompatibilityReport(refusals=[error])
        policy = _of_new(config, data)
    if policy is None:
        return None
    return compare(data, _world(config), policy, config.policy.cameras if data is None else {})


def _of_new(config: RunConfig, data: DatasetInfo) -> PolicySpaces:
    num_proprio = data.num_proprio if config.policy.use_proprio else 0
    return PolicySpaces(data.num_actions, num_proprio, _world(config).spaces.cameras)


def _world(config: RunConfig) -> World:
    planned = simulator_spec(config.env).world.planned_spaces(config.env)
    spaces = Spaces(
        num_actions=planned.num_actions,
        num_choices=None,
        action_low=(),
        action_high=(),
        num_proprio=planned.num_proprio,
        num_images=planned.num_images,
        cameras=planned.cameras,
        control_hz=planned.control_hz if planned.is_exact else None,
    )
    return World(spaces, config.env.image_size, planned.is_exact)
