"""Rows of BEHAVIOR's policy at its true size, measured by benchmarks.gpu_7b, and the same rows for other robots."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache

from benchmarks.gpu.commands import output
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import LeftOut, Row, Seen, row
from benchmarks.gpu.sync import Legs
from rlrun.placement.step_time import device_of

TIME_LIMIT_S, COMPILED_LIMIT_S = 240.0, 600.0
Numbers = dict[str, dict]
Measure = Callable[[Machine], Seen]

# Bytes of a card: an update with adapters takes 21 GB, one of all weights at half depth 80; and CUDA some more.
NEEDED_BYTES, NEEDED_FULL_BYTES = 30e9, 86e9
SMALL = ("--small-layers", "--layers", "2", "--micro-batches", "1", "--batches", "1", "--repeats", "1")
FULL = ("--batches", "2", "8", "--micro-batches", "8", "--repeats", "3")
UPDATES = ("--only-updates", "--no-checkpointing")
SMALL_UPDATES = ("--small-layers", "--layers", "2", "--micro-batches", "2", "--repeats", "1")
HALF_DEPTH = ("--layers", "16", "--lora", "0")
FEW_ROWS = 2  # the CPU decides how long they take
# Rows of a micro-batch of updates that keep all activations: all of them, and those that keep the card busy.
ROWS_OF = {"libero": (2, 8, 16, 32), "behavior": (2, 4, 8, 16)}
BUSY_ROWS = {"libero": (16, 32), "behavior": (8, 16)}
HALF_DEPTH_ROWS = (2, 4)
MAX_FEW_ROWS_S = {"libero": 0.6, "behavior": 0.9}
MIN_MFU, MIN_COMPILED_MFU = 0.33, 0.40
MIN_ACT_MFU = {2: 0.30, 8: 0.45}  # by rows of an answer
MAX_OFF_TIME, MAX_OFF_MEMORY = 0.25, 0.10  # of the plan's time and memory
MAX_FIRST_PASS_S = 180.0  # in which kernels are compiled
MAX_MORE_GRAPHS = 3  # one a class of blocks: two towers and Llama
MAX_FIRST_OFFLOAD_S, MAX_MOVE_S = 15.0, 0.6  # the first one pins the memory
# name of the row, of the measurement, seconds at most
SYNCS = (
    ("sync, both resident: host memory", "sync, both resident", 0.6),
    ("sync in turns", "sync in turns", 1.0),
    ("sync, adapters only", "sync, adapters only", 0.3),
)


# --- measuring -----------------------------------------------------------------------------------


@cache
def measured(machine: Machine, robot: str) -> Numbers:
    """Return all numbers of a robot's policy with adapters of rank 32."""
    return _asked(machine, robot, SMALL if machine.is_pretended else FULL)


@cache
def updates_measured(machine: Machine, robot: str, more: tuple[str, ...] = ()) -> Numbers:
    """Return numbers of updates that keep all activations, with adapters of rank 32 unless `more` says otherwise."""
    rows = HALF_DEPTH_ROWS if more == HALF_DEPTH else BUSY_ROWS[robot] if more else ROWS_OF[robot]
    words = SMALL_UPDATES if machine.is_pretended else ("--micro-batches", *map(str, rows), "--repeats", "3")
    return _asked(machine, robot, (*UPDATES, *more, *words), NEEDED_FULL_BYTES if more == HALF_DEPTH else NEEDED_BYTES)


def _asked(machine: Machine, robot: str, words: Sequence[str], needed_bytes: float = NEEDED_BYTES) -> Numbers:
    if not machine.is_pretended:
        _require_card(machine, needed_bytes)
    limit_s = COMPILED_LIMIT_S if "--compile" in words else TIME_LIMIT_S
    return json.loads(output(machine.command("benchmarks.gpu_7b", "--json", "--robot", robot, *words), limit_s))


def _require_card(machine: Machine, needed_bytes: float) -> None:
    import torch

    card = torch.cuda.get_device_properties(machine.device)
    if card.total_memory < needed_bytes:
        raise LeftOut(f"needs {needed_bytes / 1e9:.0f} GB, the card has {card.total_memory / 1e9:.0f}")
    if device_of(card.name) is None:
        raise LeftOut(f"the table of cards lacks {card.name}, so no time is expected of it")


def _named(found: Numbers, start: str) -> list[tuple[str, dict]]:
    """Return (rest of the name, numbers) of the measurements whose names start so."""
    return [(name.removeprefix(start), numbers) for name, numbers in found.items() if name.startswith(start)]


def _updates(found: Numbers) -> list[tuple[str, dict]]:
    """Return (rows, numbers) of updates, with those of their memory. Raises LeftOut if there is none."""
    passes = [(rows, numbers | found.get(f"peak, 2 x {rows}", {})) for rows, numbers in _named(found, "update, 2 x ")]
    if not passes:
        raise LeftOut("the card has too little memory for that many rows")
    return passes


# --- judging -------------------------------------------------------------------------------------


def is_as_planned(numbers: dict) -> bool:
    """Return whether an update took the plan's time and memory, about."""
    is_in_time = abs(numbers["seconds"] - numbers["planned_s"]) <= MAX_OFF_TIME * numbers["planned_s"]
    return is_in_time and abs(numbers["bytes"] - numbers["estimate"]) <= MAX_OFF_MEMORY * numbers["estimate"]


def _shown(rows: str, n: dict) -> str:
    text = f"{rows} {n['seconds']:.2f} s, planned {n['planned_s']:.2f}, MFU {100 * n['mfu']:.0f} %"
    return f"{text}, {n['bytes'] / 1e9:.1f} GB, planned {n['estimate'] / 1e9:.1f}"


def judged(passes: list[tuple[str, dict]], busy: Sequence[int], least: float) -> Seen:
    """Judge updates by the plan, and those of many rows by their MFU."""
    enough = [n["mfu"] >= least for rows, n in passes if rows in [f"{count} rows" for count in busy]]
    is_right = all(enough) and all(is_as_planned(n) for _, n in passes)
    return Seen("; ".join(_shown(rows, n) for rows, n in passes), is_right)


def _few_rows(robot: str) -> Measure:
    def measure(machine: Machine) -> Seen:
        seconds = updates_measured(machine, robot)[f"update, 2 x {FEW_ROWS} rows"]["seconds"]
        return Seen(f"{seconds:.2f} s", seconds <= MAX_FEW_ROWS_S[robot])

    return measure


def _kept(robot: str) -> Measure:
    def measure(machine: Machine) -> Seen:
        return judged(_updates(updates_measured(machine, robot)), BUSY_ROWS[robot], MIN_MFU)

    return measure


def _half_depth(machine: Machine) -> Seen:
    return judged(_updates(updates_measured(machine, "behavior", HALF_DEPTH)), HALF_DEPTH_ROWS[-1:], MIN_MFU)


def _compiled(machine: Machine) -> Seen:
    found = updates_measured(machine, "behavior", ("--compile",))
    passes = _updates(found)
    first_s = max(n["first_s"] for _, n in passes)
    graphs = [
        f"{n['count']} graphs after {rows}, {n['more']} more with a row less" for rows, n in _named(found, "graphs, ")
    ]
    text = "; ".join([*(_shown(rows, n) for rows, n in passes), f"first pass {first_s:.0f} s", *graphs])
    has_few = all(n["more"] <= MAX_MORE_GRAPHS for _, n in _named(found, "graphs, "))
    is_fast = all(n["mfu"] >= MIN_COMPILED_MFU for _, n in passes) and first_s <= MAX_FIRST_PASS_S
    return Seen(text, is_fast and has_few)


def _act(robot: str) -> Measure:
    def measure(machine: Machine) -> Seen:
        passes = _named(measured(machine, robot), "act, ")
        text = "; ".join(f"{rows} {n['seconds']:.2f} s, MFU {100 * n['mfu']:.0f} %" for rows, n in passes)
        return Seen(text, all(n["mfu"] >= MIN_ACT_MFU.get(int(rows.split()[0]), 0) for rows, n in passes))

    return measure


def _recomputed(robot: str) -> Measure:
    def measure(machine: Machine) -> Seen:
        return judged(_updates(measured(machine, robot)), (), 0.0)

    return measure


def _numbers(robot: str) -> Measure:
    def measure(machine: Machine) -> Seen:
        numbers = measured(machine, robot)
        gap = numbers["log-probabilities"]["gap"]
        differing = [n["count"] for _, n in _named(numbers, "weights that differ")]
        return Seen(f"gap {gap:.4f}, {sum(differing)} tensors differ", gap < 0.05 and not any(differing))

    return measure


def moves_seen(found: Numbers) -> Seen:
    """Judge the moves between card and host."""
    moves = {name: n["seconds"] for name, n in found.items() if name.endswith(("offload", "onload"))}
    limits = {name: MAX_FIRST_OFFLOAD_S if "first" in name else MAX_MOVE_S for name in moves}
    text = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in moves.items())
    return Seen(text, bool(moves) and all(seconds <= limits[name] for name, seconds in moves.items()))


def _sync(robot: str, name: str, limit_s: float) -> Measure:
    def measure(machine: Machine) -> Seen:
        numbers = measured(machine, robot)
        if name not in numbers:
            raise LeftOut("the card has no room for actor and rollout worker at one time")
        of = {field: value for field, value in numbers[name].items() if field != "seconds"}
        return Seen(Legs(**of).text(), numbers[name]["seconds"] <= limit_s)

    return measure


# --- rows ----------------------------------------------------------------------------------------


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _counts(rows: Sequence[int]) -> str:
    return " and ".join(map(str, rows))


PLANNED = f"within {_percent(MAX_OFF_TIME)} of the plan's time and {_percent(MAX_OFF_MEMORY)} of its memory"
SAME = "log-probabilities at most 0.05 apart, weights equal after a sync"
ACT = "MFU at least " + ", ".join(f"{_percent(least)} with {rows} rows" for rows, least in MIN_ACT_MFU.items())
MOVES = f"first offloads at most {MAX_FIRST_OFFLOAD_S:g} s, later moves at most {MAX_MOVE_S:g} s"


def kept_rows(robot: str) -> list[Row]:
    """Return the rows of updates that keep all activations."""
    of, mfu = f"7.5 B, {robot}", f"MFU at least {_percent(MIN_MFU)} with {_counts(BUSY_ROWS[robot])} rows"
    few = row(f"{of}: update, 2 x 2 rows, adapters, no recompute", f"at most {MAX_FEW_ROWS_S[robot]:g} s")
    return [row(f"{of}: update, no recompute", f"{mfu}; {PLANNED}")(_kept(robot)), few(_few_rows(robot))]


def whole_rows(robot: str) -> list[Row]:
    """Return the rows of acting, updates with recomputation, moves and syncs."""
    of = f"7.5 B, {robot}"
    return [
        row(f"{of}: act", ACT)(_act(robot)),
        row(f"{of}: numbers", SAME)(_numbers(robot)),
        row(f"{of}: update, recomputed", PLANNED)(_recomputed(robot)),
        row(f"{of}: moves", MOVES)(lambda machine: moves_seen(measured(machine, robot))),
        *(row(f"{of}: {name}", f"at most {limit_s} s")(_sync(robot, key, limit_s)) for name, key, limit_s in SYNCS),
    ]


half_depth = row(
    "7.5 B, behavior: all weights at half depth, update, no recompute",
    f"MFU at least {_percent(MIN_MFU)} with {HALF_DEPTH_ROWS[-1]} rows; {PLANNED}",
)(_half_depth)
compiled = row(
    "7.5 B, behavior: update, no recompute, Inductor",
    f"MFU at least {_percent(MIN_COMPILED_MFU)} with {_counts(BUSY_ROWS['behavior'])} rows; first pass at most "
    f"{MAX_FIRST_PASS_S:g} s; at most {MAX_MORE_GRAPHS} graphs more with a row less",
    needs=("triton",),
)(_compiled)
ROWS = [*kept_rows("behavior"), half_depth, compiled, *whole_rows("behavior")]
