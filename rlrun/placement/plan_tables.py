"""Prints a plan: its verdict, who runs where and the memory; with details, reasons, environment, hosts and links."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlrun.config.schema import ClusterKind, WeightTransport
from rlrun.placement.step_time import way_seconds
from rlrun.placement.verdict import remarks, suggestions, verdict, warnings

if TYPE_CHECKING:
    from rich.table import Table

    from rlrun.data.fit import CompatibilityReport
    from rlrun.placement.budget import Budget
    from rlrun.placement.fitting import Fitting
    from rlrun.placement.inventory import Inventory
    from rlrun.placement.plan import Plan, PlannedNode, Slot
    from rlrun.placement.workload import Workload

_MAX_LINKS = 12
WIDTH_OF_LOGS = 160


class PlanPage:
    """Return the output of `rlrun.plan`: the verdict first, and with `plan.details` every table."""

    def __init__(self, fitting: Fitting, inventory: Inventory):
        """Take a run that fits."""
        from rich.console import Console

        self._fitting = fitting
        self._inventory = inventory
        self._config = fitting.config
        self._plan = fitting.plan
        self._budget = fitting.budget
        self._console = Console(width=_width())

    def show(self, fit: CompatibilityReport | None) -> None:
        """Print verdict, what does not fit, who runs where, memory, suggestions; then the details, if asked for."""
        config = self._config
        plan = self._plan
        budget = self._budget
        self._say(verdict(config, plan, budget))
        for sentence in warnings(config, plan):
            self._say(f"warning: {sentence}")
        self._inputs(fit)
        for sentence in self._fitting.choices:
            self._say(sentence)
        self._say(f"machines: {self._inventory.source}")
        for doubt in self._inventory.doubts:
            self._say(f"not known: {doubt}")
        self._say(picture(plan))
        self._tables(_workers(plan), _memory(budget))
        for sentence in (*remarks(config, plan, budget, self._fitting.free), *_ways(self._fitting.work, plan, budget)):
            self._say(sentence)
        is_free = "actor.micro_batch_size" in self._fitting.free
        work = self._fitting.work
        for sentence in () if is_free else suggestions(work, plan, budget.times, self._inventory):
            self._say(f"Estimated: {sentence}.")
        if config.plan.details:
            self._details()
        else:
            self._say("Reasons, environment variables, host memory and links: add details=true.")

    def _inputs(self, fit: CompatibilityReport | None) -> None:
        """Print whether data set and policy fit, as far as they are on this machine."""
        if fit is None:
            return
        for refusal in fit.refusals:
            self._say(
                f"warning: the run will be refused: {refusal.message} {refusal.cause or ''} {refusal.remedy or ''}"
            )
        for sentence in fit.warnings:
            self._say(f"warning: {sentence}")
        for line in (*(fit.lines() if fit.rows else ()), *fit.notes):
            self._say(line)

    def _details(self) -> None:
        plan = self._plan
        budget = self._budget
        links = _links(budget, self._config.placement.link_gbit_per_s)
        self._tables(_nodes(plan), _reasons(plan), _environment(plan), _hosts(budget), _stores(budget), links)
        self._say(f"Training uses {plan.training_backend.value}: {plan.training_backend.why}.")
        if self._config.weight_sync.transport is WeightTransport.collective:
            self._say(f"Weight sync uses {plan.sync_backend.value}: {plan.sync_backend.why}.")
        self._say(
            f"The policy has {budget.num_parameters / 1e6:,.1f} M parameters. A training step moves "
            f"{size(budget.observation_bytes)} env -> rollout, {size(budget.trajectory_bytes)} env -> actor, "
            f"{size(budget.weight_bytes)} actor -> each rollout worker."
        )

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def _tables(self, *tables: Table) -> None:
        for table in tables:
            if table.row_count:
                self._console.print(table)


def _width() -> int | None:
    """Return the columns for a reader without a terminal, such as a log; None: those of the terminal, or COLUMNS."""
    is_measured = "COLUMNS" in os.environ or any(os.isatty(stream) for stream in (0, 1, 2))
    return None if is_measured else WIDTH_OF_LOGS


def picture(plan: Plan) -> str:
    """Return one line per accelerator with its workers; equal neighbours share a line, equal nodes a box.

    Example::

        train-0 (group train)
          GPU 0-3  NVIDIA A100    actor rollout
          GPU 4-7  NVIDIA A100    actor
        sim-0 (group sim)
          GPU 0-3  RTX 4090       env
          GPU 4-7  RTX 4090       free
    """
    boxes: dict[tuple[str, ...], list[PlannedNode]] = {}
    by_node: dict[str, list[Slot]] = {}
    for slot in plan.slots:
        by_node.setdefault(slot.node, []).append(slot)
    for planned in plan.nodes:
        boxes.setdefault(tuple(_box(planned, by_node.get(planned.node.name, []))), []).append(planned)
    lines = []
    for box, nodes in boxes.items():
        names = nodes[0].node.name if len(nodes) == 1 else f"{nodes[0].node.name} … {nodes[-1].node.name}"
        more = f", {len(nodes)} nodes" if len(nodes) > 1 else ""
        lines += [f"{names} (group {nodes[0].group}{more})", *box]
    return "\n".join(lines)


def _box(planned: PlannedNode, slots: list[Slot]) -> list[str]:
    on_device: dict[int, Counter[str]] = {}
    on_cores: Counter[str] = Counter()
    for slot in slots:
        for index in slot.accelerators:
            on_device.setdefault(index, Counter())[slot.role] += 1
        if not slot.accelerators:
            on_cores[slot.role] += 1
    devices = [
        (a.model, "hidden by CUDA_VISIBLE_DEVICES" if a.is_hidden else _roles(on_device.get(i, Counter())))
        for i, a in enumerate(planned.node.accelerators)
    ]
    lines = []
    first = 0
    for i, device in enumerate(devices):
        if i + 1 == len(devices) or devices[i + 1] != device:
            lines.append(f"  {f'GPU {runs(list(range(first, i + 1)))}':<9} {device[0]:<26} {device[1] or 'free'}")
            first = i + 1
    if on_cores or not devices:
        lines.append(f"  {'CPU':<9} {f'{planned.node.num_cpus} cores':<26} {_roles(on_cores) or 'free'}")
    return lines


def _roles(counts: Counter[str]) -> str:
    return " ".join(role if count == 1 else f"{role} x {count}" for role, count in counts.items())


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _nodes(plan: Plan) -> Table:
    from rlrun.placement.inventory import describe

    table = _table("Nodes, in the order that numbers the accelerators", "ranks", "node", "group", "hardware")
    for planned in plan.nodes:
        node = planned.node
        has = f"{describe(node.accelerators)}, {node.num_cpus} cores, {size(node.memory_bytes)}"
        table.add_row(planned.ranks, node.name, planned.group, has)
    return table


def _workers(plan: Plan) -> Table:
    """Return a table with one row per role and node."""
    table = _table("Workers", "workers", "node", "on", "interpreter")
    for name, slot, on, _ in _alike(plan):
        table.add_row(name, slot.node, on, slot.interpreter or "rlrun's own")
    return table


def _reasons(plan: Plan) -> Table:
    table = _table("Why the workers are there", "workers", "why")
    for name, _, _, why in _alike(plan):
        table.add_row(name, why)
    return table


def _alike(plan: Plan) -> Iterator[tuple[str, Slot, str, str]]:
    """Yield for each role, node and reason: workers, one of their slots, their accelerators or "cores", the reason."""
    rows: dict[tuple[str, ...], list[Slot]] = {}
    for slot in plan.slots:
        rows.setdefault((slot.role, slot.node, slot.accelerator_model, slot.why), []).append(slot)
    for (role, _, model, why), slots in rows.items():
        indices = sorted({index for slot in slots for index in slot.accelerators})
        on = f"{runs(indices)} of {model}" if indices else "cores"
        yield f"{role}/{runs([slot.rank for slot in slots])}", slots[0], on, why


def _ways(work: Workload, plan: Plan, budget: Budget) -> Iterator[str]:
    """Yield how weights reach rollout workers, a sentence for those that get them alike."""
    if work.config.cluster.kind is ClusterKind.local:
        return
    seconds = way_seconds(work, plan, budget.weight_bytes)
    alike = dict[tuple[str, float, str], list[int]]()
    for way in work.ways(plan):
        alike.setdefault((way.name(plan), seconds[way.transport], way.why), []).append(way.rollout)
    for (name, time_s, why), ranks in alike.items():
        about = f"about {time_s:.1f} s" if time_s >= 0.1 else "less than 0.1 s"
        yield f"Weights reach rollout/{runs(ranks)} through {name} in {about}: {why}."


def _environment(plan: Plan) -> Table:
    """Return a table with one row per variable and the values that workers get."""
    from rlrun.config.simulator_process import Decided
    from rlrun.placement.node_environment import VARIABLES

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
        if variable.decided is Decided.node and (value := _on_node(variable.name, plan)):
            table.add_row(variable.name, value, ", ".join(variable.roles), variable.reason)
    return table


def _on_node(variable: str, plan: Plan) -> str:
    """Return the planned value of a variable that the worker's node decides; "" if it is not used."""
    if variable.endswith("SOCKET_IFNAME"):
        nodes = {planned.node.name: planned.node for planned in plan.nodes}
        found: dict[str, None] = {}
        for slot in plan.slots:
            owners = [i.name for i in nodes[slot.node].interfaces if slot.address in i.addresses]
            found[slot.interface or (owners[0] if owners else "that of the route to the head")] = None
        return " | ".join(found)
    if variable == "TORCH_FR_DUMP_TEMP_FILE":
        return "<run>/flight_recorder/<worker>_" if any(slot.accelerators for slot in plan.of("actor")) else ""
    checks = dict.fromkeys(slot.memory_check for slot in plan.of("rollout") if len(slot.accelerators) > 1)
    return " | ".join(f"check {check.value}: {check.why}" for check in checks)


def runs(numbers: list[int]) -> str:
    """Example: [0, 1, 2, 5] -> "0-2,5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _memory(budget: Budget) -> Table:
    """Return a table with one row for all accelerators that hold the same."""
    alike: dict[tuple, int] = Counter(
        (
            a.device.model,
            tuple((need.worker.split("/")[0], need.part, need.num_bytes) for need in a.needs),
            a.peak_bytes,
        )
        + (a.held_back_bytes, a.memory_bytes)
        for a in budget.accelerators
    )
    table = _table("Memory of each accelerator", "accelerators", "for", "peak", "reserve", "has")
    for (model, needs, peak, held_back, memory), count in alike.items():
        held: dict[str, Counter[str]] = {}
        for role, part, amount in needs:
            held.setdefault(role, Counter())[f"{part} {size(amount)}"] += 1
        holds = "; ".join(
            f"{role}: {', '.join(part if n == 1 else f'{n} x {part}' for part, n in parts.items())}"
            for role, parts in held.items()
        )
        of = "not known" if memory is None else size(memory)
        table.add_row(f"{count} x {model}", holds, size(peak), size(held_back), of)
    return table


def _hosts(budget: Budget) -> Table:
    """Return a table with one row for all nodes with the same numbers."""
    buffers = {
        "offloaded": "offloaded_bytes",
        "weights in transit": "weight_bytes",
        "checkpoint": "saved_bytes",
        "algorithm": "algorithm_bytes",
        "simulators": "simulator_bytes",
    }
    used = {title: name for title, name in buffers.items() if any(getattr(host, name) for host in budget.hosts)}
    table = _table("Host memory for models", "nodes", "while loading", "waves", *used, "of")
    rows: dict[tuple[int, ...], list[str]] = {}
    for host in budget.hosts:
        kept_bytes = (getattr(host, name) for name in used.values())
        node = host.node
        rows.setdefault((host.peak_bytes, host.num_waves, *kept_bytes, node.memory_bytes), []).append(node.name)
    for (peak, num_waves, *kept, memory), names in rows.items():
        kept_sizes = [size(num_bytes) if num_bytes else "-" for num_bytes in kept]
        table.add_row(_several(names), size(peak), str(num_waves), *kept_sizes, size(memory))
    return table


def _stores(budget: Budget) -> Table:
    """Return a table of the objects of a training step: bytes in the object stores, and bytes that they spill."""
    table = _table("Objects of a training step", "nodes", "needs", "object store", "spills", "to", "free there")
    rows: dict[tuple[str, str, str, str, str], list[str]] = {}
    for store in budget.stores:
        node = store.node
        known = node.object_store_bytes is not None
        cells = (
            size(store.needed_bytes),
            size(node.object_store_bytes or 0) if known else "not known",
            size(store.spilled_bytes) if known else "not known",
            node.spill_dir or "not known",
            size(node.spill_free_bytes) if node.spill_free_bytes is not None else "not known",
        )
        rows.setdefault(cells, []).append(node.name)
    for cells, names in rows.items():
        table.add_row(_several(names), *cells)
    return table


def _links(budget: Budget, link_gbit_per_s: float) -> Table:
    title = f"Bytes of a training step on each link, and the seconds they take at {link_gbit_per_s:g} Gbit/s"
    table = _table(title, "from", "to", "bytes", "seconds")
    for link in budget.links[:_MAX_LINKS]:
        table.add_row(link.source, link.target, size(link.num_bytes), f"{link.seconds:.2f}")
    if len(budget.links) > _MAX_LINKS:
        table.add_row(f"and {len(budget.links) - _MAX_LINKS} links with less traffic", "", "", "")
    return table


def _several(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} … {names[-1]} ({len(names)})"


def size(num_bytes: int) -> str:
    """Example: size(1_500_000) == "1.5 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1e3:.1f} kB"
