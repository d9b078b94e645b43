"""Parts of the program: rows that are measured in one process, each printed as a line of JSON as soon as it is there.

`python -m benchmarks.gpu.part NAME… --cards N [--pretended]`. An error on a card ends all later work of its process,
and a crash the process itself; the other parts go on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version

from packaging.version import Version

from benchmarks.gpu.commands import CommandFailed, lines
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import Outcome, Result
from rlrun.placement.node_environment import ACTOR_ALLOCATOR, GROWING

ALLOCATOR = "PYTORCH_ALLOC_CONF"
FIRST_GROWING = (2, 11)  # the oldest torch on which this program has run
FIRST_PINNING = (2, 13)  # the first torch that takes sizes of pinned memory; older ones refuse them

LIMITS_S = {
    "node": 200.0,
    "kernels": 180.0,
    "updates": 180.0,
    "memory": 120.0,
    "training": 900.0,
    "seven_billion": 900.0,
    "policy_folder": 240.0,
    "warp_world": 600.0,
}


def results(parts: Sequence[str], machine: Machine) -> Iterator[Result]:
    """Measure parts in a process of their own; if that dies, the last result says so."""
    pretended = ["--pretended"] if machine.is_pretended else []
    command = machine.command("benchmarks.gpu.part", *parts, "--cards", str(machine.num_cards), *pretended)
    try:
        for line in lines(command, sum(LIMITS_S[part] for part in parts), allocator(machine, version("torch"))):
            yield Result(**json.loads(line))
    except CommandFailed as error:
        yield Result(f"the other rows of {', '.join(parts)}", "a process that ends well", str(error), Outcome.off.value)


def allocator(machine: Machine, torch_version: str) -> dict[str, str]:
    """Return the allocator's settings of actor workers, as far as this torch takes them."""
    release = Version(torch_version).release
    if machine.is_pretended or release < FIRST_GROWING:
        return {}
    return {ALLOCATOR: ACTOR_ALLOCATOR if release >= FIRST_PINNING else GROWING}


def main() -> None:
    """Measure the rows of some parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=LIMITS_S)
    parser.add_argument("--cards", type=int, required=True)
    parser.add_argument("--pretended", action="store_true")
    arguments = parser.parse_args()
    machine = Machine(arguments.cards, arguments.pretended)
    for part in arguments.parts:
        for row in import_module(f"benchmarks.gpu.{part}").ROWS:
            with redirect_stdout(sys.stderr):
                result = row.result(machine)
            print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
