"""One card in one sitting: `python -m benchmarks.gpu [--rows NAME …] [--budget SECONDS]`, which is `make gpu`.

Measures every part that only a GPU can prove, what decides most first, prints a table for docs/gpu.md, and ends with
status 1 if a number is off. What the machine lacks (Ray, a second card, flash-attn) is left out and listed, as are the
rows that the budget does not reach. Without a card it ends with status 4. With --pretended, everything runs on CUDA
that is only pretended, which shows that the program itself works.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.part import LIMITS_S, Budget, results, rows_of
from benchmarks.gpu.row import Result
from benchmarks.gpu.table import is_passed, markdown
from rlrun.system import nvidia_smi
from rlrun.system.errors import ExitStatus


def main() -> int:
    """Measure the chosen rows, then print the table."""
    parser = _parser()
    arguments = parser.parse_args()
    budget = Budget.of(arguments.budget)
    machine, title = (Machine(1, True), f"pretended CUDA, {_torch()}") if arguments.pretended else _this_machine()
    if machine.num_cards == 0:
        print("No GPU: torch sees none here. `--pretended` tries the program without one.")
        return int(ExitStatus.doctor)
    parts = [part for part in LIMITS_S if part in arguments.only and rows_of(part, arguments.rows)]
    if not parts:
        parser.error(f"no row of {', '.join(arguments.only)} has a name with {' or '.join(arguments.rows)} in it")
    # On a card a crash costs one part only; what is pretended does not crash, and one process starts sooner than nine.
    groups = [parts] if machine.is_pretended else [[part] for part in parts]
    found: list[Result] = []
    for group in groups:
        for result in results(group, machine, arguments.rows, budget):
            found.append(result)
            print(f"{result.outcome:<22} {result.name}: {result.seen}", file=sys.stderr, flush=True)
    print(markdown(f"{date.today():%Y-%m-%d}, {title}", found))
    return int(ExitStatus.ok if is_passed(found) else ExitStatus.unexpected)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=LIMITS_S, default=list(LIMITS_S), help="parts; default: all")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="rows with one of these in their names")
    parser.add_argument("--budget", type=_seconds, metavar="SECONDS", help="end after these; default: when all is done")
    parser.add_argument("--pretended", action="store_true", help="try the program without a card")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _this_machine() -> tuple[Machine, str]:
    import torch

    count = torch.cuda.device_count()
    name = torch.cuda.get_device_name(0) if count else ""
    return Machine(count), f"{count} x {name}, driver {_driver()}, {_torch()}"


def _driver() -> str:
    try:
        found = nvidia_smi.query(["driver_version"])
    except nvidia_smi.UnansweredError:
        found = []
    return found[0][0] if found else "unknown"


def _torch() -> str:
    import torch

    return f"torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
