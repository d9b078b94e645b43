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
        *(
            row(f"7.5 B, {robot}: {name}", f"at most {limit_s} s")(_sync(robot, key, limit_s))
            for name, key, limit_s in SYNCS
        ),
    ]


ROWS = [
    *_rows("libero", "any; estimated MFU 25-45 %", "any; estimated MFU 25-40 %"),
    *_rows("behavior", "any; estimated MFU 25-45 % at 1 row", "any; estimated MFU 25-40 %"),
]
