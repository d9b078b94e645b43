"""Rows of the published policy at its true size, by benchmarks.gpu_7b in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from benchmarks.gpu.commands import output
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import LeftOut, Row, Seen, row
from benchmarks.gpu.sync import Legs

TIME_LIMIT_S = 240.0
NEEDED_BYTES = 30e9  # an update with adapters takes 21 GB, the context and libraries of CUDA some more
SMALL = ("--small-layers", "--micro-batches", "1", "--batches", "1", "--repeats", "1")
FULL = ("--batches", "1", "2", "8", "16", "--micro-batches", "2", "8", "32", "--repeats", "3")
UPDATES = ("--only-updates", "--no-checkpointing")
SMALL_UPDATES = ("--small-layers", "--micro-batches", "2", "--repeats", "1")
FEW_ROWS = 2  # the CPU decides how long they take
ROWS_OF = {"libero": (8, 16, 32), "behavior": (4, 8, 16)}  # rows of a micro-batch that keep the card busy
MAX_FEW_ROWS_S = {"libero": 0.6, "behavior": 0.9}
MIN_MFU, MIN_COMPILED_MFU = 0.33, 0.40
# name of the row, of the measurement, seconds at most
SYNCS = (
    ("sync, both resident: host memory", "sync, both resident", 0.6),
    ("sync in turns", "sync in turns", 1.0),
    ("sync, adapters only", "sync, adapters only", 0.3),
)


@cache
def measured(machine: Machine, robot: str) -> dict[str, dict]:
    """Return all numbers of a robot's policy with adapters of rank 32."""
    if not machine.is_pretended:
        _require_room(machine)
    words = SMALL if machine.is_pretended else FULL
    return json.loads(output(machine.command("benchmarks.gpu_7b", "--json", "--robot", robot, *words), TIME_LIMIT_S))


@cache
def updates_measured(machine: Machine, robot: str, is_compiled: bool) -> dict[str, dict]:
    """Return numbers of updates that keep all activations, with adapters of rank 32."""
    if not machine.is_pretended:
        _require_room(machine)
    rows = [str(count) for count in ROWS_OF[robot]]
    words = SMALL_UPDATES if machine.is_pretended else ("--micro-batches", str(FEW_ROWS), *rows, "--repeats", "3")
    compiled = ("--compile",) if is_compiled else ()
    command = machine.command("benchmarks.gpu_7b", "--json", "--robot", robot, *UPDATES, *compiled, *words)
    return json.loads(output(command, TIME_LIMIT_S))


def _few_rows(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        seconds = updates_measured(machine, robot, False)[f"update, 2 x {FEW_ROWS} rows"]["seconds"]
        return Seen(f"{seconds:.2f} s", seconds <= MAX_FEW_ROWS_S[robot])

    return measure


def _busy(robot: str, is_compiled: bool, least: float) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        found = updates_measured(machine, robot, is_compiled)
        names = [f"update, 2 x {rows} rows" for rows in ROWS_OF[robot]]
        passes = [(name, found[name]) for name in names if name in found]
        if not passes and not machine.is_pretended:
            raise LeftOut("the card has too little memory for that many rows")
        text = "; ".join(f"{name[8:]} {n['seconds']:.2f} s, MFU {100 * n['mfu']:.0f} %" for name, n in passes)
        return Seen(text, all(n["mfu"] >= least for _, n in passes))

    return measure


def _require_room(machine: Machine) -> None:
    import torch

    size = torch.cuda.get_device_properties(machine.device).total_memory
    if size < NEEDED_BYTES:
        raise LeftOut(f"needs {NEEDED_BYTES / 1e9:.0f} GB, the card has {size / 1e9:.0f}")


def _named(machine: Machine, robot: str, start: str) -> list[tuple[str, dict]]:
    """Return (rest of the name, numbers) of the measurements whose names start so."""
    found = measured(machine, robot).items()
    return [(name.removeprefix(start), numbers) for name, numbers in found if name.startswith(start)]


def _passes(robot: str, start: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        passes = _named(machine, robot, start)
        text = "; ".join(f"{rows} {n['seconds']:.2f} s, MFU {100 * n['mfu']:.0f} %" for rows, n in passes)
        return Seen(text, bool(passes))

    return measure


def _numbers(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        numbers = measured(machine, robot)
        gap = numbers["log-probabilities"]["gap"]
        differing = [n["count"] for _, n in _named(machine, robot, "weights that differ")]
        return Seen(f"gap {gap:.4f}, {sum(differing)} tensors differ", gap < 0.05 and not any(differing))

    return measure


def _memory(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        peaks = [(rows, n["bytes"] / 1e9, n["estimate"] / 1e9) for rows, n in _named(machine, robot, "peak, ")]
        text = "; ".join(f"{rows} {peak:.1f} GB, estimate {estimate:.1f} GB" for rows, peak, estimate in peaks)
        return Seen(text, all(abs(peak - estimate) <= 0.1 * estimate for _, peak, estimate in peaks))

    return measure


def _moving(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        numbers = measured(machine, robot).items()
        moves = [f"{name} {n['seconds']:.1f} s" for name, n in numbers if name.endswith(("offload", "onload"))]
        return Seen(", ".join(moves), is_right=True)

    return measure


def _sync(robot: str, name: str, limit_s: float) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        numbers = measured(machine, robot)
        if name not in numbers:
            raise LeftOut("the card has no room for actor and rollout worker at one time")
        of = {field: value for field, value in numbers[name].items() if field != "seconds"}
        return Seen(Legs(**of).text(), numbers[name]["seconds"] <= limit_s)

    return measure


def _rows(robot: str, act: str, update: str) -> list[Row]:
    """Times have no expectation that holds for every card: theirs are the estimates for an A100 or H100."""
    same = "log-probabilities at most 0.05 apart, weights equal after a sync"
    return [
        row(f"7.5 B, {robot}: numbers", same)(_numbers(robot)),
        row(f"7.5 B, {robot}: peak of an update", "within 10 % of the plan's estimate")(_memory(robot)),
        row(f"7.5 B, {robot}: act", act)(_passes(robot, "act, ")),
        row(f"7.5 B, {robot}: update", update)(_passes(robot, "update, ")),
        row(f"7.5 B, {robot}: moves", "any; estimated: offload and onload below 2 s")(_moving(robot)),
        row(f"7.5 B, {robot}: update, 2 x 2 rows, adapters, no recompute", f"at most {MAX_FEW_ROWS_S[robot]:g} s")(
            _few_rows(robot)
        ),
        row(f"7.5 B, {robot}: update, no recompute", f"MFU at least {100 * MIN_MFU:.0f} % with {_counts(robot)} rows")(
            _busy(robot, False, MIN_MFU)
        ),
        *(
            row(f"7.5 B, {robot}: {name}", f"at most {limit_s} s")(_sync(robot, key, limit_s))
            for name, key, limit_s in SYNCS
        ),
    ]


def _counts(robot: str) -> str:
    return ", ".join(map(str, ROWS_OF[robot]))


def _compiled(robot: str) -> Row:
    expected = f"MFU at least {100 * MIN_COMPILED_MFU:.0f} % with {_counts(robot)} rows"
    name = f"7.5 B, {robot}: update, no recompute, Inductor"
    return row(name, expected, needs=("triton",))(_busy(robot, True, MIN_COMPILED_MFU))


ROWS = [
    *_rows("libero", "any; estimated MFU 25-45 %", "any; estimated MFU 25-40 %"),
    *_rows("behavior", "any; estimated MFU 25-45 % at 1 row", "any; estimated MFU 25-40 %"),
    _compiled("behavior"),
]
