"""Writes docs/faults.md from the rows in docs/faults.json and docs/clean_runs.json."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS, PAGE, CLEAN = DOCS / "faults.json", DOCS / "faults.md", DOCS / "clean_runs.json"
HEAD = """# What happens when parts fail

`python -m benchmarks.faults` writes this page. It injects each fault into a real training run on the embedded world
(2 env workers, 1 rollout worker, 2 actor ranks, {cores} cores), by real means: signals, exceptions, limits of the
kernel, full disks, cut links ([plug-in](../benchmarks/faults/plug_in/sitecustomize.py),
[injections](../benchmarks/faults/injections.py)). In rows with hosts, these are network namespaces, and the env workers
run on other hosts than the actor; the other rows ran on a private Ray. The machine did other work at the same time.
Each row has the commit of the code that ran: rows of another commit than the newest were not run again since.
{rows} faults, {reported} reported within {deadline:.0f} s, the right culprit named in {right}. `reported after` is the
time until the first line on the console about the fault, which for a stall is the watchdog's warning.

| fault | reported after | culprit | first line | what happened next | lost | commit |
|---|---|---|---|---|---|---|"""
CLEAN_HEAD = """

## Without faults

`python -m benchmarks.faults clean FOLDER` writes this table: {what}.
An alarm is any console line about a loss, a restart or a failure. A warning says that a worker is slow: it comes
half-way to an alarm, or after 20 s and twice the usual time, which may be earlier on a busy machine.

| run | steps | time | false alarms | warnings |
|---|---|---|---|---|"""


@dataclass
class Row:
    """The result of one fault."""

    fault: str
    detected_s: float | None  # None: not reported within the deadline
    line: str
    is_culprit_right: bool
    then: str
    lost: str
    date: str
    commit: str  # of the code that ran


@dataclass
class CleanRun:
    """The result of one run without a fault."""

    name: str
    num_steps: int
    seconds: float
    alarms: list[str]
    warnings: list[str]


def keep(row: Row, order: Sequence[str], deadline_s: float) -> None:
    """Store a row, and write the page. order: names of all faults."""
    rows = {old["fault"]: old for old in _read(ROWS)}
    rows[row.fault] = asdict(row)
    ROWS.write_text(json.dumps([rows[name] for name in order if name in rows], indent=1) + "\n")
    write(deadline_s)


def keep_clean(runs: Sequence[CleanRun], what: str, deadline_s: float) -> None:
    """Store the runs without faults, and write the page."""
    CLEAN.write_text(json.dumps({"what": what, "runs": [asdict(run) for run in runs]}, indent=1) + "\n")
    write(deadline_s)


def write(deadline_s: float) -> None:
    """Write the page from the stored rows."""
    rows = [Row(**entry) for entry in _read(ROWS)]
    reported = [row for row in rows if row.detected_s is not None]
    right = sum(row.is_culprit_right for row in rows)
    words = {"rows": len(rows), "reported": len(reported), "deadline": deadline_s, "right": right}
    lines = [HEAD.format(cores=os.cpu_count(), **words)]
    for row in rows:
        after = f"{row.detected_s:.1f} s" if row.detected_s is not None else "**not reported**"
        culprit = "right" if row.is_culprit_right else "**wrong**" if row.line else "-"
        first = row.line.replace("|", "/")[:160]
        cells = [row.fault, after, culprit, first, row.then, row.lost, f"{row.commit}, {row.date}"]
        lines.append(f"| {' | '.join(cells)} |")
    clean = _read(CLEAN)
    if clean:
        lines.append(CLEAN_HEAD.format(what=clean["what"]))
        for run in [CleanRun(**entry) for entry in clean["runs"]]:
            cells = ["; ".join(found).replace("|", "/") or "none" for found in (run.alarms, run.warnings)]
            lines.append(f"| {run.name} | {run.num_steps} | {run.seconds:.0f} s | {' | '.join(cells)} |")
    PAGE.write_text("\n".join(lines) + "\n")


def _read(path: Path):
    return json.loads(path.read_text()) if path.exists() else []
