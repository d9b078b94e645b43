"""What the tests of each file cost: seconds of processor, with their child processes, and seconds of clock.

    python -m benchmarks.test_times FOLDER -n 2 -m "not long"     runs pytest so, and keeps the seconds of each test
    python -m benchmarks.test_times FOLDER                        prints the table of what FOLDER keeps

Seconds of processor hardly depend on what else the machine does. A fixture of a module counts for its first test. Ray's
processes leave their parent, so for whole runs on Ray the clock of a quiet machine says more.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

FOLDER = "RLRUN_TEST_TIMES"  # the environment variable that names the folder to every process of pytest
SHOWN_S = 10.0


def _processor_s() -> float:
    """Of this process, of children that it has waited for, and of those that run: ranks stay up for many tests."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


def _keep(test: str, processor_s: float, clock_s: float) -> None:
    with (Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([test, processor_s, clock_s]) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep what one test takes, with its fixtures."""
    processor_s, clock_s = _processor_s(), time.monotonic()
    result = yield
    _keep(item.nodeid, _processor_s() - processor_s, time.monotonic() - clock_s)
    return result


@pytest.hookimpl
def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep what this process took to import pytest, the plugins and the tests."""
    _keep("(imports and collection)", _processor_s(), 0.0)


def table(folder: Path) -> str:
    """The files that take longest, as lines of a table of Markdown."""
    files: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kept in sorted(folder.glob("*.jsonl")):
        for line in kept.read_text().splitlines():
            test, processor_s, clock_s = json.loads(line)
            files[test.split("::")[0]].append((processor_s, clock_s))
    rows = sorted(
        ((sum(p for p, _ in of), sum(c for _, c in of), len(of), file) for file, of in files.items()), reverse=True
    )
    few = [row for row in rows if row[0] < SHOWN_S]
    rows = [row for row in rows if row[0] >= SHOWN_S]
    rows.append((*(sum(row[i] for row in few) for i in range(3)), f"{len(few)} other files"))
    rows.append((*(sum(row[i] for row in rows) for i in range(3)), "all"))
    lines = ["| file | tests | processor, s | clock, s |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {file} | {tests} | {cpu:.0f} | {clock:.0f} |" for cpu, clock, tests, file in rows])


def main() -> int:
    """Run pytest if there are arguments for it, and print the table."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    status = 0
    if sys.argv[2:]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.test_times", *sys.argv[2:]]
        status = subprocess.run(command, env={**os.environ, FOLDER: str(folder)}, check=False).returncode
    print(table(folder))
    return status


if __name__ == "__main__":
    sys.exit(main())
