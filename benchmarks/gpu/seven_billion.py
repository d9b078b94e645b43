"""Rows of the published policy at its true size, by benchmarks.gpu_7b in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from benchmarks.gpu.commands import output
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import LeftOut, Row, Seen, row

TIME_LIMIT_S = 240.0
NEEDED_BYTES = 30e9  # an update with adapters takes 21 GB, the context and libraries of CUDA some more
SMALL = ("--small-layers", "--micro-batch", "1", "--no-offload", "--batches", "1", "--repeats", "1")
FULL = ("--batches", "1", "2", "8", "16")


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


def _acting(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        acts = {name: n for name, n in measured(machine, robot).items() if name.startswith("act, ")}
        text = "; ".join(f"{name[5:]} {n['seconds']:.2f} s, MFU {100 * n['mfu']:.0f} %" for name, n in acts.items())
        return Seen(text, bool(acts))

    return measure


def _updating(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        ((name, n),) = [item for item in measured(machine, robot).items() if item[0].startswith("update, ")]
        return Seen(f"{name[8:]} {n['seconds']:.2f} s, MFU {100 * n['mfu']:.0f} %", is_right=True)

    return measure


def _numbers(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        numbers = measured(machine, robot)
        gap, differing = numbers["log-probabilities"]["gap"], numbers["weights that differ"]["count"]
        return Seen(f"gap {gap:.4f}, {differing} tensors differ", gap < 0.05 and differing == 0)

    return measure


def _memory(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        peak = measured(machine, robot)["peak of the update"]
        text = f"{peak['bytes'] / 1e9:.1f} GB, estimate {peak['estimate'] / 1e9:.1f} GB"
        return Seen(text, abs(peak["bytes"] - peak["estimate"]) <= 0.1 * peak["estimate"])

    return measure


def _moving(robot: str) -> Callable[[Machine], Seen]:
    def measure(machine: Machine) -> Seen:
        numbers = measured(machine, robot)
        sync = numbers["weight sync"]
        moves = [f"{name} {n['seconds']:.1f} s" for name, n in numbers.items() if name.endswith(("offload", "onload"))]
        rate = sync["bytes"] / 1e9 / sync["seconds"]
        return Seen(", ".join([f"sync {sync['seconds']:.1f} s, {rate:.1f} GB/s", *moves]), is_right=True)

    return measure


def _rows(robot: str, act: str, update: str) -> list[Row]:
    """Times have no expectation that holds for every card: theirs are the estimates for an A100 or H100."""
    same = "log-probabilities at most 0.05 apart, weights equal after a sync"
    return [
        row(f"7.5 B, {robot}: numbers", same)(_numbers(robot)),
        row(f"7.5 B, {robot}: peak of an update", "within 10 % of the plan's estimate")(_memory(robot)),
        row(f"7.5 B, {robot}: act", act)(_acting(robot)),
        row(f"7.5 B, {robot}: update", update)(_updating(robot)),
        row(f"7.5 B, {robot}: moves", "any; estimated: offload and onload below 2 s")(_moving(robot)),
    ]


ROWS = [
    *_rows("libero", "any; estimated MFU 25-45 %", "any; estimated MFU 25-40 %"),
    *_rows("behavior", "any; estimated MFU 25-45 % at 1 row", "any; estimated MFU 25-40 %"),
]
