"""Print which worker runs where, with what environment, and what it needs; start nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rlrun.config.exit_status import ExitStatus
from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlrun.placement.budget import Budget
    from rlrun.placement.plan import Plan, Slot


@entry_point("Print the plan of a run; starts nothing.", aliases={"inventory": "placement.inventory"})
def main(config: RunConfig) -> ExitStatus:
    """Plan from `placement.inventory`, else for this machine."""
    from rich.console import Console

    from rlrun.placement.budget import budget
    from rlrun.placement.planner import plan
    from rlrun.placement.this_machine import known_inventory

    inventory = known_inventory(config)
    planned = plan(config, inventory)
    show(Console(), planned, budget(config, planned, inventory))
    return ExitStatus.ok


def show(console: Console, plan: Plan, budget: Budget) -> None:
    """Print nodes, workers, environment and budget."""
    for table in (_nodes(plan), _workers(plan), _environment(plan), _memory(budget)):
        if table.row_count:
            console.print(table)
    console.print(f"collectives of training: {plan.training_backend.value} ({plan.training_backend.why})")
    console.print(f"collectives of weight sync: {plan.sync_backend.value} ({plan.sync_backend.why})")
    console.print(
        f"policy: {budget.num_parameters / 1e6:,.1f} M parameters; a training step moves "
        f"{_size(budget.observation_bytes)} env -> rollout, {_size(budget.trajectory_bytes)} env -> actor, "
        f"{_size(budget.weight_bytes)} actor -> each rollout worker"
    )


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _nodes(plan: Plan) -> Table:
    from rlrun.placement.inventory import describe

    table = _table("Nodes, in the order in which accelerators are counted", "ranks", "node", "group", "it has")
    for planned in plan.nodes:
        node = planned.node
        has = f"{describe(node.accelerators)}, {node.num_cpus} cores, {_size(node.memory_bytes)}"
        table.add_row(planned.ranks, node.name, planned.group, has)
    return table


def _workers(plan: Plan) -> Table:
    """One row per role and node."""
    rows: dict[tuple[str, ...], list[Slot]] = {}
    for slot in plan.slots:
        rows.setdefault((slot.role, slot.node, slot.accelerator_model, slot.why), []).append(slot)
    table = _table("Workers", "workers", "node", "on", "interpreter", "why")
    for (role, node, model, why), slots in rows.items():
        indices = sorted({index for slot in slots for index in slot.accelerators})
        on = f"{_runs(indices)} of {model}" if indices else "cores"
        ranks = _runs([slot.rank for slot in slots])
        table.add_row(f"{role}/{ranks}", node, on, slots[0].interpreter or "rlrun's own", why)
    return table


def _environment(plan: Plan) -> Table:
    """One row per variable, with the values that its workers get."""
    from rlrun.config.environment import VARIABLES, Decided

    table = _table("Environment of the workers", "variable", "value", "workers", "why")
    values: dict[tuple[str, str], dict[str, None]] = {}
    roles: dict[tuple[str, str], dict[str, None]] = {}
    for slot in plan.slots:
        for setting in slot.environment:
            row = (setting.name, setting.reason)
            values.setdefault(row, {})[setting.value or "(empty)"] = None
            roles.setdefault(row, {})[slot.role] = None
    for name, reason in sorted(values):
        row = (name, reason)
        table.add_row(name, " | ".join(values[row]), ", ".join(roles[row]), reason)
    for variable in VARIABLES:
        if variable.decided is Decided.node:
            table.add_row(variable.name, "(its node's)", ", ".join(variable.roles), variable.reason)
    return table


def _runs(numbers: list[int]) -> str:
    """Example: [0, 1, 2, 5] -> "0-2,5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _memory(budget: Budget) -> Table:
    """Accelerators that hold the same are one row."""
    alike = Counter(
        (a.model, tuple((worker.split("/")[0], amount) for worker, amount in a.needs), a.peak_bytes, a.memory_bytes)
        for a in budget.accelerators
    )
    columns = ("accelerators", "each holds (activations not counted)", "peak", "of")
    table = _table("Device memory", *columns)
    for (model, needs, peak, memory), count in alike.items():
        held = " + ".join(f"{role} {_size(amount)}" for role, amount in needs)
        table.add_row(f"{count} x {model}", held, _size(peak), _size(memory))
    return table


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1e3:.1f} kB"


if __name__ == "__main__":
    main()
