"""A part of the program: rows that are measured in one process, each printed as a line of JSON as soon as it is there.

`python -m benchmarks.gpu.part NAME --cards N [--pretended]`. An error on a card ends all later work of its process, and
a crash the process itself; the other parts go on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module

from benchmarks.gpu.commands import CommandFailed, lines
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import Outcome, Result

# name -> seconds within which it ends, and whether its own process computes on the card
PARTS: dict[str, tuple[float, bool]] = {
    "node": (200, True),
    "kernels": (180, True),
    "updates": (180, True),
    "memory": (120, True),
    "training": (900, False),
    "seven_billion": (500, False),
    "policy_folder": (240, True),
}


def results(name: str, machine: Machine) -> Iterator[Result]:
    """Measure a part in a process of its own; if that dies, the last result says so."""
    limit_s, is_on_card = PARTS[name]
    words = [name, "--cards", str(machine.num_cards), *(["--pretended"] if machine.is_pretended else [])]
    module = "benchmarks.gpu.part"
    command = machine.command(module, *words) if is_on_card else [sys.executable, "-m", module, *words]
    try:
        for line in lines(command, limit_s):
            yield Result(**json.loads(line))
    except CommandFailed as error:
        yield Result(f"the other rows of {name}", "a process that ends well", str(error), Outcome.off.value)


def main() -> None:
    """Measure the rows of one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--cards", type=int, required=True)
    parser.add_argument("--pretended", action="store_true")
    arguments = parser.parse_args()
    machine = Machine(arguments.cards, arguments.pretended)
    for row in import_module(f"benchmarks.gpu.{arguments.part}").ROWS:
        with redirect_stdout(sys.stderr):
            result = row.result(machine)
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
