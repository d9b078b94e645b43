"""Write RUN_DIR/report.html: one self-contained page about a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlrun.observability.report.page import write_report
from rlrun.system.exit_status import ExitStatus

__all__ = ["write_report"]


def main(arguments: list[str] | None = None) -> ExitStatus:
    """Write the page and print where it is."""
    parser = argparse.ArgumentParser(prog="python -m rlrun.report", description=__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of a run, finished or not")
    folder = parser.parse_args(arguments).run_dir
    try:
        path = write_report(folder)
    except FileNotFoundError as error:
        print(f"{error}: give the folder that rlrun.train printed, such as runs/NAME/TIME", file=sys.stderr)
        return ExitStatus.bad_input
    print(path)
    return ExitStatus.ok


if __name__ == "__main__":
    sys.exit(main())
