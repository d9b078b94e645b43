"""Write a self-contained HTML report of a run, or a comparison of several runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlrun.observability.records import read_run
from rlrun.observability.report.comparison import format_difference, run_folders, write_comparison
from rlrun.observability.report.differences import RunGroup, group_runs
from rlrun.observability.report.page import write_report
from rlrun.observability.run_files import REPORT
from rlrun.system.errors import ExitStatus

__all__ = ["main", "write_report"]
COMPARISON = "comparison.html"


def main(arguments: list[str] | None = None) -> ExitStatus:
    """Write the page and print its path: in the folder of the run or sweep, else in the working directory."""
    parser = argparse.ArgumentParser(prog="python -m rlrun.report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run, or of several as a sweep's")
    parser.add_argument("--output", type=Path, help=f"file to write a comparison to; else RUN/{REPORT} or {COMPARISON}")
    given = parser.parse_args(arguments)
    try:
        folders = run_folders(given.runs)
        if folders == given.runs and len(folders) == 1 and given.output is None:
            path = write_report(folders[0])
        else:
            default = given.runs[0] / REPORT if len(given.runs) == 1 else Path(COMPARISON)
            path = write_comparison(folders, given.output or default)
            for line in differences(group_runs([read_run(folder) for folder in folders])):
                print(line)
    except FileNotFoundError as error:
        print(f"{error}: give the folder that rlrun.train printed, such as runs/NAME/TIME", file=sys.stderr)
        return ExitStatus.bad_input
    except OSError as error:
        print(f"the page cannot be written: {error}: name a file in a folder of yours as --output", file=sys.stderr)
        return ExitStatus.storage
    print(path)
    return ExitStatus.ok


def differences(groups: Sequence[RunGroup]) -> list[str]:
    """Return sentences that compare the success rate of each setting with that of the first evaluated one."""
    measured = [group for group in groups if group.success]
    lines = []
    for group in measured[1:]:
        difference = group.difference_to(measured[0])
        if difference is not None:
            verdict = "" if difference.is_clear else ": no clear difference"
            lines.append(f"A {measured[0].label}")
            lines.append(f"B {group.label}")
            lines.append(f"B less A: {format_difference(difference)}, 95 % interval{verdict}; {difference.basis}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
