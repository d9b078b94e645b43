"""Fits a run to machines: chooses the numbers that are left to the plan, places the workers, and counts their memory.

A run that does not fit is refused with changes of its keys that do fit, each tried, with its time and what it changes
in learning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlrun.config.checks import OF_INPUTS, check
from rlrun.config.registry import with_usual_numbers
from rlrun.config.schema import OptimizerKind, Precision, RunConfig
from rlrun.config.sections import AUTO, as_yaml, auto_names, freeze
from rlrun.placement.budget import Budget, budget
from rlrun.placement.choices import choose
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import ROLES, Plan
from rlrun.placement.verdict import duration
from rlrun.placement.workload import Workload
from rlrun.policies.spec import policy_spec
from rlrun.system.errors import ExitStatus, RunError

# that a refusal lists
FEW_CHANGES = 2
MOST_CHANGES = 4
LORA_RANK = 32
LEFT_OUT = object()  # the value of a key that is left out
SAME = "learns the same"
ROUNDING = "learns the same but for rounding"


@dataclass(frozen=True)
class Fitting:
    """A run on some machines."""

    work: Workload  # with the chosen numbers
    plan: Plan
    budget: Budget
    choices: tuple[str, ...]  # sentences on what was chosen
    free: tuple[str, ...]  # keys that the plan chose

    @property
    def config(self) -> RunConfig:
        """The configuration with the chosen numbers."""
        return self.work.config

    def with_config(self, config: RunConfig) -> Fitting:
        """Return the same plan of a configuration that differs in nothing that plans depend on."""
        return replace(self, work=self.work.with_config(config))


@dataclass(frozen=True)
class Change:
    """Keys that make a run fit. Example: Change({"actor.lora.rank": 32}, "another training: …")."""

    keys: dict[str, Any]
    effect: str  # on what is learned
    is_pair: bool = False  # of changes that do not fit alone

    @property
    def text(self) -> str:
        """The arguments. Example: "actor.num_workers=auto actor.lora.rank=32"."""
        taken = " ".join(f"{key}={as_yaml(value)}" for key, value in self.keys.items() if value is not LEFT_OUT)
        left_out = " and ".join(key for key, value in self.keys.items() if value is LEFT_OUT)
        return " ".join(filter(None, [taken, f"without {left_out}" if left_out else ""]))

    def of(self, config: RunConfig) -> RunConfig:
        """Return the changed configuration. Raises RunError if it is none."""
        changed = config
        auto = list(config.auto)
        for key, value in self.keys.items():
            if value == AUTO:
                auto.append(key)
            else:
                changed = _with(changed, key.split("."), value)
        auto = list(dict.fromkeys(auto))
        changed = replace(with_usual_numbers(replace(changed, auto=auto)), auto=auto)
        freeze(changed)
        check(changed, OF_INPUTS)  # no change is about inputs
        return changed


def fit_run(config: RunConfig, inventory: Inventory, roles: Sequence[str] = ROLES) -> Fitting:
    """Return the run on these machines. Raises RunError if it does not fit, with changes that do.

    Its exit status is 3, or 11 if the policy could not be counted, so that nobody can say whether it fits.
    """
    try:
        return _fit(config, inventory, roles)
    except RunError as refusal:
        if refusal.exit_status is not ExitStatus.placement or set(roles) != set(ROLES):
            raise
        found = changes_that_fit(config, inventory, is_about_memory=not str(refusal.key).startswith("placement."))
        if found:
            fits = "This fits" if len(found) == 1 else "Each of these fits"
            lines = [f"{change.text}: {_time(fitting)}; {change.effect}" for change, fitting in found]
            refusal.remedy = f"{fits}:" + "".join(f"\n  {line}" for line in lines)
        else:
            refusal.remedy = f"{refusal.remedy or ''} No change of keys that was tried makes it fit.".strip()
        raise


def _fit(config: RunConfig, inventory: Inventory, roles: Sequence[str]) -> Fitting:
    chosen = choose(Workload(config), inventory, roles)
    has_cards = any(slot.accelerators for slot in chosen.plan.slots)
    if has_cards and config.placement.is_counted and not chosen.work.counts.is_counted:
        raise RunError(
            "Nobody can say whether this run fits on its accelerators.",
            key="policy.kind",
            value=config.policy.kind,
            cause="The policy could not be counted, as the warning above says.",
            remedy="placement.is_counted=false takes the accelerators without a verdict.",
            exit_status=ExitStatus.uncounted,
        )
    sums = budget(chosen.work, chosen.plan, inventory)
    return Fitting(chosen.work, chosen.plan, sums, chosen.sentences, tuple(config.auto))


def changes_that_fit(
    config: RunConfig, inventory: Inventory, is_about_memory: bool = True
) -> list[tuple[Change, Fitting]]:
    """Return up to four changes with which a run fits: those that learn the same come first, then the fastest ones.

    is_about_memory: False: only other places can help. More keys are only worth it if the run is faster with them.
    """
    found: list[tuple[Change, Fitting]] = []
    for change in _changes(config, is_about_memory):
        if change.is_pair and len(found) >= FEW_CHANGES:
            break
        try:
            fitting = _fit(change.of(config), inventory, ROLES)
        except RunError:
            continue
        seconds = _seconds(fitting)
        if not any(one.keys.items() <= change.keys.items() and _seconds(other) <= seconds for one, other in found):
            found.append((change, fitting))
        if len(found) == MOST_CHANGES:
            break
    return sorted(found, key=lambda one: (one[0].effect not in (SAME, ROUNDING), _seconds(one[1])))


def _changes(config: RunConfig, is_about_memory: bool) -> Iterator[Change]:
    """Yield changes to try: few keys before many, and what learns the same before what does not."""
    free = _free(config)
    if free:
        yield Change(free, SAME)
    placed = free | dict.fromkeys(["placement.roles", "placement.nodes"], LEFT_OUT) if config.placement.roles else {}
    if placed:
        yield Change(placed, SAME)
    if not is_about_memory:
        return
    singles = [*_neutral(config), *_learning(config)]
    for change in singles:
        yield Change(free | change.keys, change.effect)
    for change in singles if placed else ():
        yield Change(placed | change.keys, change.effect)
    for number, one in enumerate(singles):
        for other in singles[number + 1 :]:
            if not one.keys.keys() & other.keys.keys():
                effects = [effect for effect in (one.effect, other.effect) if effect not in (SAME, ROUNDING)]
                keys = (placed or free) | one.keys | other.keys
                yield Change(keys, "; ".join(effects) or ROUNDING, is_pair=True)


def _free(config: RunConfig) -> dict[str, Any]:
    """Return the keys that the plan could choose and does not, with the values that leave them to it."""
    found: dict[str, Any] = {}
    for section in ("actor", "rollout", "env"):
        for name in auto_names(type(getattr(config, section))):
            if f"{section}.{name}" not in config.auto:
                found[f"{section}.{name}"] = AUTO
    if config.placement.offload is not None:
        found["placement.offload"] = None
    if config.actor.cpu_offload is not None:
        found["actor.cpu_offload"] = None
    if config.actor.replicate_frozen is not None:
        found["actor.replicate_frozen"] = None
    if config.weight_sync.transport is not None:
        found["weight_sync.transport"] = None
    return found


def _neutral(config: RunConfig) -> Iterator[Change]:
    """Yield changes with which a run learns the same."""
    if config.checkpoint.is_asynchronous:
        yield Change({"checkpoint.is_asynchronous": False}, SAME)
    envs = config.env.num_envs
    epochs = config.algorithm.rollout_epochs
    for factor in (2, 4, 8, 16, 32):
        if envs % factor == 0:
            keys = {"env.num_envs": envs // factor, "algorithm.rollout_epochs": epochs * factor}
            yield Change(keys, f"the same batch in {epochs * factor} rollout epochs")
    if config.rollout.precision is Precision.fp32:
        yield Change({"rollout.precision": "bf16"}, "rollout workers round more")


def _learning(config: RunConfig) -> Iterator[Change]:
    """Yield changes with which a run learns otherwise."""
    if config.actor.optimizer is not OptimizerKind.adamw_8bit:
        yield Change({"actor.optimizer": OptimizerKind.adamw_8bit.name}, "Adam's moments have 8 bits")
    if config.actor.lora.rank == 0 and policy_spec(config).lora is not None:
        yield Change({"actor.lora.rank": LORA_RANK}, "another training, of adapters alone")


def _with(section: Any, path: Sequence[str], value: Any) -> Any:
    """Return a copy of a section with another value at a path of keys."""
    name = path[0]
    if len(path) > 1:
        return replace(section, **{name: _with(getattr(section, name), path[1:], value)})
    present = getattr(section, name)
    if isinstance(present, (OptimizerKind, Precision)):
        value = type(present)[value]
    return replace(section, **{name: {} if value is LEFT_OUT else value})


def _seconds(fitting: Fitting) -> float:
    times = fitting.budget.times
    return float("inf") if times is None else fitting.config.num_steps * times.step_s


def _time(fitting: Fitting) -> str:
    steps = f"{fitting.config.num_steps:,} training steps"
    seconds = _seconds(fitting)
    return f"{steps} take about {duration(seconds)}" if seconds < float("inf") else f"the time of {steps} is unknown"
