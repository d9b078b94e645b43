"""Parts of the program: rows that are measured in one process, each printed as a line of JSON as soon as it is there.

`python -m benchmarks.gpu.part PART… --cards N [--rows NAME…] [--pretended]`. An error on a card ends all later work of
its process, and a crash the process itself; the other parts go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version

from packaging.version import Version

from benchmarks.gpu.commands import CommandFailed, TooLate, lines
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import Outcome, Result, Row
from rlrun.placement import node_environment

ALLOCATOR = "PYTORCH_ALLOC_CONF"
FIRST_GROWING = (2, 11)  # the oldest torch on which this program has run

# in the order in which they are measured: what decides most comes first
LIMITS_S = {
    "memory": 120.0,
    "updates": 180.0,
    "seven_billion": 1200.0,
    "training": 900.0,
    "kernels": 180.0,
    "warp_world": 600.0,
    "node": 200.0,
    "libero_sizes": 900.0,
    "policy_folder": 240.0,
}


@dataclass(frozen=True)
class Budget:
    """The moment at which measuring ends. Example: Budget.of(900.0), a quarter of an hour from now."""

    end: float  # of time.monotonic; infinite without a budget

    @classmethod
    def of(cls, seconds: float | None) -> Budget:
        """Return a budget that begins now. None: as long as it takes."""
        return cls(float("inf") if seconds is None else time.monotonic() + seconds)

    def left_s(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.end - time.monotonic())


def rows_of(part: str, names: Sequence[str] = ()) -> list[Row]:
    """Return the rows of a part whose names contain one of `names`, in whatever case; without `names` all rows."""
    rows: list[Row] = import_module(f"benchmarks.gpu.{part}").ROWS
    return [row for row in rows if not names or any(name.casefold() in row.name.casefold() for name in names)]


def results(parts: Sequence[str], machine: Machine, names: Sequence[str], budget: Budget) -> Iterator[Result]:
    """Measure rows in a process of their own; if that dies, the last result says so.

    Rows that have not ended with the budget are not reached.
    """
    rows = [row for part in parts for row in rows_of(part, names)]
    limit_s, left_s = sum(LIMITS_S[part] for part in parts), budget.left_s()
    pretended = ["--pretended"] if machine.is_pretended else []
    chosen = ["--rows", *names] if names else []
    command = machine.command("benchmarks.gpu.part", *parts, "--cards", str(machine.num_cards), *chosen, *pretended)
    num_ended = 0
    try:
        if left_s > 0:
            for line in lines(command, min(limit_s, left_s), allocator(machine, version("torch"))):
                yield Result(**json.loads(line))
                num_ended += 1
    except CommandFailed as error:
        if not isinstance(error, TooLate) or limit_s <= left_s:
            rest = f"the other rows of {', '.join(parts)}"
            yield Result(rest, "a process that ends well", str(error), Outcome.off.value)
            return
    for row in rows[num_ended:]:
        yield Result(row.name, row.expected, "the budget had ended", Outcome.not_reached.value)


def allocator(machine: Machine, torch_version: str) -> dict[str, str]:
    """Return the allocator's settings of actor workers, as far as this torch takes them."""
    release = Version(torch_version).release
    if machine.is_pretended or release < FIRST_GROWING:
        return {}
    return {ALLOCATOR: node_environment.allocator(True, torch_version) or ""}


def main() -> None:
    """Measure the rows of some parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=LIMITS_S)
    parser.add_argument("--rows", nargs="+", default=[])
    parser.add_argument("--cards", type=int, required=True)
    parser.add_argument("--pretended", action="store_true")
    arguments = parser.parse_args()
    machine = Machine(arguments.cards, arguments.pretended)
    for part in arguments.parts:
        for row in rows_of(part, arguments.rows):
            with redirect_stdout(sys.stderr):
                result = row.result(machine)
            print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
