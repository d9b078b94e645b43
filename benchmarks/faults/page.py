"""docs/faults.md, and the rows that it is written from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS, PAGE, CLEAN = DOCS / "faults.json", DOCS / "faults.md", DOCS / "clean_runs.json"
HEAD = """# What happens when parts fail

Written by `python -m benchmarks.faults`: each fault is injected into a real training run on the embedded world (2 env
workers, 1 rollout worker, 2 actor ranks, {cores} cores), by the means that nature uses: signals, exceptions, limits of
the kernel, full disks, cut links ([plug-in](../benchmarks/faults/plug_in/sitecustomize.py),
[strikes](../benchmarks/faults/strikes.py)). Where hosts are named, they are network namespaces, with the env workers on
others than the actor; the rest ran on a private Ray. Times are as measured, on a machine that did other work as well;
rows are of {states}.
{rows} faults, {told} told within {deadline:.0f} s, the culprit right in {right}. `told after` is the first line of the
console about it, which for what stands still is the watchdog's forewarning.

| fault | told after | culprit | what was said | what happened next | lost |
|---|---|---|---|---|---|"""
CLEAN_HEAD = """

## Without faults

Written by `python -m benchmarks.faults clean FOLDER`: {what}.
An alarm is any line of the console that tells of a loss, a restart or a failure; a forewarning tells that somebody is
slow: half-way to an alarm, or after 20 s and twice the usual time, which on a busy machine may be earlier.

| run | steps | time | false alarms | forewarnings |
|---|---|---|---|---|"""


@dataclass
class Row:
    """What was seen of one fault."""

    fault: str
    detected_s: float | None  # None: not within the deadline
    said: str
    is_culprit_right: bool
    then: str
    lost: str
    date: str
    commit: str  # of the code that ran


@dataclass
class CleanRun:
    """What was seen of one run in which nothing failed."""

    name: str
    num_steps: int
    seconds: float
    alarms: list[str]
    forewarnings: list[str]


def keep(row: Row, order: Sequence[str], deadline_s: float) -> None:
    """Put the row into its place and write the page anew. order: names of all faults."""
    rows = {old["fault"]: old for old in _read(ROWS)}
    rows[row.fault] = asdict(row)
    ROWS.write_text(json.dumps([rows[name] for name in order if name in rows], indent=1) + "\n")
    write(deadline_s)


def keep_clean(runs: Sequence[CleanRun], what: str, deadline_s: float) -> None:
    """The same for the runs without faults."""
    CLEAN.write_text(json.dumps({"what": what, "runs": [asdict(run) for run in runs]}, indent=1) + "\n")
    write(deadline_s)


def write(deadline_s: float) -> None:
    """The page, from what is kept."""
    rows = [Row(**entry) for entry in _read(ROWS)]
    seen = [row for row in rows if row.detected_s is not None]
    right = sum(row.is_culprit_right for row in rows)
    states = ", ".join(sorted({f"{row.date} (commit {row.commit})" for row in rows}))
    words = {"rows": len(rows), "told": len(seen), "deadline": deadline_s, "right": right, "states": states}
    lines = [HEAD.format(cores=os.cpu_count(), **words)]
    for row in rows:
        told = f"{row.detected_s:.1f} s" if row.detected_s is not None else "**not told**"
        culprit = "right" if row.is_culprit_right else "**wrong**" if row.said else "-"
        said = row.said.replace("|", "/")[:160]
        lines.append(f"| {row.fault} | {told} | {culprit} | {said} | {row.then} | {row.lost} |")
    clean = _read(CLEAN)
    if clean:
        lines.append(CLEAN_HEAD.format(what=clean["what"]))
        for run in [CleanRun(**entry) for entry in clean["runs"]]:
            told = ["; ".join(said).replace("|", "/") or "none" for said in (run.alarms, run.forewarnings)]
            lines.append(f"| {run.name} | {run.num_steps} | {run.seconds:.0f} s | {' | '.join(told)} |")
    PAGE.write_text("\n".join(lines) + "\n")


def _read(path: Path):
    return json.loads(path.read_text()) if path.exists() else []
