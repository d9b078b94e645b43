"""`python -m benchmarks.faults [part of a name …]`: each fault in a real run; rows go to docs/faults.md.

Faults that a run survives follow one another in the same run. Rows that were not asked for stay as they were measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.faults.catalogue import FAULTS, Fault
from benchmarks.faults.run import Run

ROOT = Path(__file__).resolve().parents[2]
ROWS, PAGE = ROOT / "docs" / "faults.json", ROOT / "docs" / "faults.md"
DEADLINE_S = float(os.environ.get("RLRUN_FAULT_DEADLINE_S", "120"))  # for a fault to be told
START_S = 600.0
TOLD = (  # a line that says that something is wrong
    r"process ended|what it held|failed:|late:|made anew|not there after|warning:|No space|rlrun\.train: |raylet"
)
HEAD = """# What happens when parts fail

Written by `python -m benchmarks.faults`: each fault is injected into a real training run on the embedded world (2 env
workers, 1 rollout worker, 2 actor ranks, private Ray, {cores} cores), by the means that nature uses: signals,
exceptions, limits of the kernel, full disks ([plug-in](../benchmarks/faults/plug_in/sitecustomize.py)). Times are as
measured, on a machine that did other work as well. {rows} faults, {told} told within {deadline:.0f} s, the culprit
right in {right}. `told after` is the first line of the console about it, which for what stands still is the watchdog's
forewarning; `noise` is pixels at random, which nothing but a learning curve can tell from a picture.

| fault | told after | culprit | what was said | what happened next | lost |
|---|---|---|---|---|---|"""


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


def main() -> None:
    """Inject what is asked for, and write the page."""
    words = sys.argv[1:]
    wanted = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="rlrun-faults-", ignore_cleanup_errors=True) as folder:
        shared: Run | None = None
        for number, fault in enumerate(wanted):
            place = Path(folder) / f"{number}"
            if fault.is_own_run:
                keep(injected(fault, alone(fault, place)))
                continue
            if shared is None or shared.process.poll() is not None:
                shared = started(Run(place))
            row = injected(fault, shared, is_shared=True)
            keep(row)
            if row.then.startswith(("ended", "stood still")):
                shared.end()
                shared = None
        if shared is not None:
            shared.end()


def started(run: Run) -> Run:
    """The run, once it has done its second step."""
    if run.first(r"^step +2/", 0, START_S) is None:
        raise SystemExit("the run did not start:\n" + "\n".join(text for _, text in run.lines))
    return run


def alone(fault: Fault, place: Path) -> Run:
    """A run of its own; where its disk is to become full, the disk is a small tmpfs."""
    if fault.name == "checkpoint disk full":
        (place / "run").mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", place / "run"], check=True)
    run = Run(place, *fault.overrides, **fault.environment)
    if fault.is_at_start:
        run.order(*fault.order)
        return run
    return run if fault.strike and fault.strike.__name__ == "at_start" else started(run)


def injected(fault: Fault, run: Run, is_shared: bool = False) -> Row:
    """Strike, look until it is told, and see what the run does then."""
    first_line, steps_before = len(run.lines), len(run.steps())
    if fault.order is None:
        struck_s = fault.strike(run)
    else:
        if not fault.is_at_start:
            run.order(*fault.order)
        struck_s = run.struck_at(fault.order[0], START_S)
    found = run.first(f"{TOLD}|{fault.told}", struck_s, DEADLINE_S)
    then, lost = aftermath(run, struck_s, steps_before, is_expected_to_end=not is_shared)
    if not is_shared:
        run.end()
        if os.path.ismount(run.folder / "run"):
            subprocess.run(["umount", "-l", run.folder / "run"], check=True)
    heard = " ".join(text for when, text in run.lines[first_line:] if found and found[0] <= when <= found[0] + 2)
    return Row(
        fault=fault.name,
        detected_s=round(found[0] - struck_s, 1) if found else None,
        said=found[1].strip() if found else "",
        is_culprit_right=bool(found) and Run.matches(fault.told, heard),
        then=then,
        lost=lost,
        date=time.strftime("%Y-%m-%d"),
    )


def aftermath(run: Run, struck_s: float, steps_before: int, is_expected_to_end: bool) -> tuple[str, str]:
    """What the run did: went on, ended with which status, or stood still; and what the metrics say was lost."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and run.process.poll() is None:
        after = [line for line in run.steps() if line["time_s"] > struck_s]
        if len(after) >= 2:
            break
        time.sleep(0.2)
    status = run.process.poll()
    new = run.steps()[steps_before:]
    lost = [f"{int(sum(line['num_infra_faults'] for line in new))} episodes void" if new else ""]
    back = run.first(r"all actor ranks are back at step", struck_s, 0)
    if back:
        lost.append(back[1])
    lost_text = "; ".join(text for text in lost if text and not text.startswith("0 ")) or "nothing"
    if status is not None:
        return f"ended with status {status}", lost_text
    after = [line for line in new if line["time_s"] > struck_s]
    if not after:
        return f"stood still for {DEADLINE_S:.0f} s", lost_text
    return f"went on; that step ended {after[0]['time_s'] - struck_s:.1f} s after the fault", lost_text


def keep(row: Row) -> None:
    """Put the row into its place and write the page anew."""
    rows = {old["fault"]: old for old in json.loads(ROWS.read_text())} if ROWS.exists() else {}
    rows[row.fault] = asdict(row)
    order = [fault.name for fault in FAULTS]
    kept = [rows[name] for name in order if name in rows]
    ROWS.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(page([Row(**entry) for entry in kept]))
    print(
        f"{row.fault}: {row.detected_s} s, {row.said!r}, right={row.is_culprit_right}, {row.then}, {row.lost}",
        flush=True,
    )


def page(rows: list[Row]) -> str:
    """docs/faults.md."""
    seen = [row for row in rows if row.detected_s is not None]
    right = sum(row.is_culprit_right for row in rows)
    lines = [HEAD.format(cores=os.cpu_count(), rows=len(rows), told=len(seen), deadline=DEADLINE_S, right=right)]
    for row in rows:
        told = f"{row.detected_s:.1f} s" if row.detected_s is not None else "**not told**"
        culprit = "right" if row.is_culprit_right else "**wrong**" if row.said else "-"
        said = row.said.replace("|", "/")[:160]
        lines.append(f"| {row.fault} | {told} | {culprit} | {said} | {row.then} | {row.lost} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
