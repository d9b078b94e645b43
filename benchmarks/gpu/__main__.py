"""Ten minutes on one card: `python -m benchmarks.gpu [--only PART …]`, which is `make gpu`.

Measures every part that only a GPU can prove, prints a table for docs/gpu.md, and ends with status 1 if a number is
off. What the machine lacks (Ray, a second card, flash-attn) is left out and listed. Without a card it ends with status
4. With --pretended, everything runs on CUDA that is only pretended, which shows that the program itself works.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.part import LIMITS_S, results
from benchmarks.gpu.row import Result
from benchmarks.gpu.table import is_passed, markdown
from rlrun.system.errors import ExitStatus


def main() -> int:
    """Measure all parts, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=LIMITS_S, default=list(LIMITS_S), help="parts; default: all")
    parser.add_argument("--pretended", action="store_true", help="try the program without a card")
    arguments = parser.parse_args()
    machine, title = (Machine(1, True), "pretended CUDA") if arguments.pretended else _this_machine()
    if machine.num_cards == 0:
        print("No GPU: torch sees none here. `--pretended` tries the program without one.")
        return int(ExitStatus.doctor)
    # On a card a crash costs one part only; what is pretended does not crash, and one process starts sooner than seven.
    groups = [arguments.only] if machine.is_pretended else [[part] for part in arguments.only]
    found: list[Result] = []
    for group in groups:
        for result in results(group, machine):
            found.append(result)
            print(f"{result.outcome:<22} {result.name}: {result.seen}", file=sys.stderr, flush=True)
    print(markdown(f"{date.today():%Y-%m-%d}, {title}", found))
    return int(ExitStatus.ok if is_passed(found) else ExitStatus.unexpected)


def _this_machine() -> tuple[Machine, str]:
    import torch

    count = torch.cuda.device_count()
    name = torch.cuda.get_device_name(0) if count else ""
    return Machine(count), f"{count} x {name}, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
