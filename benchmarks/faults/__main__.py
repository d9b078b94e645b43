"""`python -m benchmarks.faults [part of a name …]` injects each fault into a real run and writes docs/faults.md.

Faults that a run survives follow one another in the same run. Rows that were not selected stay as measured before.
`python -m benchmarks.faults clean FOLDER [key=value …]` counts false alarms in ten runs without faults.
`python -m benchmarks.faults under_load [NUM_RUNS]` counts false alarms beside twelve busy processes a core.
`python -m benchmarks.faults odd [part of a name …]` counts false alarms in healthy worlds that look like broken ones.
`python -m benchmarks.faults kills FOLDER [key=value …]` compares a run under kills with one without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults.catalogue import FAULTS, Fault
from benchmarks.faults.clean import clean_runs
from benchmarks.faults.host_run import HostRun
from benchmarks.faults.injections import (
    fail_disk,
    fill_run_disk,
    freeze_run_disk,
    mount_ext4,
    take_inodes,
    turn_read_only,
)
from benchmarks.faults.kills import runs_under_kills
from benchmarks.faults.odd import odd
from benchmarks.faults.page import Row, keep
from benchmarks.faults.run import REPORTED, Run
from benchmarks.faults.under_load import NUM_RUNS, under_load
from tests.cluster.testbed import why_not

DEADLINE_S = float(os.environ.get("RLRUN_FAULT_DEADLINE_S", "120"))  # for a fault to be reported
START_S = 600.0
ROOT = Path(__file__).resolve().parents[2]
SHOWN_LINES = 40  # console lines printed after a fault


def main() -> None:
    """Inject the selected faults, and write the page."""
    words = sys.argv[1:]
    os.environ |= {"OMP_NUM_THREADS": "1"}
    if words[:1] == ["under_load"]:
        under_load(int(words[1]) if words[1:] else NUM_RUNS)
        return
    if words[:1] == ["odd"]:
        odd(words[1:])
        return
    if words[:1] in (["clean"], ["kills"]):
        if not words[1:]:
            raise SystemExit(f"usage: python -m benchmarks.faults {words[0]} FOLDER [key=value …]")
        if words[0] == "kills":
            runs_under_kills(Path(words[1]), words[2:])
        clean_runs(Path(words[1]), DEADLINE_S, words[2:])
        return
    wanted = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="rlrun-faults-", ignore_cleanup_errors=True) as folder:
        shared: Run | None = None
        for number, fault in enumerate(wanted):
            place = Path(folder) / f"{number}"
            if fault.hosts and (reason := why_not()):
                print(f"{fault.name}: left out, {reason}")
                continue
            if fault.is_own_run or fault.hosts:
                if shared is not None:
                    shared.end()
                    shared = None
                run = alone(fault, place)
                try:
                    show(injected(fault, run))
                finally:
                    run.end()
                    unmount(run.run_dir)
                continue
            if shared is None or shared.process.poll() is not None:
                shared = started(Run(place))
            row = injected(fault, shared)
            show(row)
            if row.then.startswith(("ended", "made no progress")):
                shared.end()
                shared = None
        if shared is not None:
            shared.end()


def started(run: Run) -> Run:
    """Wait for the second step of a run, and return the run. Raises SystemExit if it does not start."""
    if run.first(r"^step +2/", 0, START_S) is None:
        console = "\n".join(text for _, text in run.lines)
        run.end()
        raise SystemExit(f"the run did not start:\n{console}")
    return run


def alone(fault: Fault, place: Path) -> Run:
    """Start a separate run for a fault, on a small disk of its own if the fault is one of the disk."""
    if fault.hosts:
        return started(HostRun(fault.hosts, fault.disks, *fault.overrides, **fault.environment))
    if fault.inject in (fill_run_disk, take_inodes):
        (place / "run").mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m,nr_inodes=2000", "tmpfs", place / "run"], check=True)
    if fault.inject in (turn_read_only, fail_disk, freeze_run_disk):
        place.mkdir(parents=True)
        mount_ext4(place / "run")
    triggers = dict([fault.trigger]) if fault.is_at_start and fault.trigger else None
    run = Run(place, *fault.overrides, triggers=triggers, **fault.environment)
    if fault.is_at_start:
        return run
    return run if fault.inject and fault.inject.__name__ == "at_start" else started(run)


def unmount(folder: Path) -> None:
    """Unmount the run folder if it is a disk of its own."""
    if os.path.ismount(folder):
        subprocess.run(["umount", "-l", folder], check=True)


def injected(fault: Fault, run: Run) -> Row:
    """Inject a fault, `num_before` times before, and return the row of the last time."""
    for _ in range(fault.num_before):
        show_once(injected_once(fault, run))
    return injected_once(fault, run)


def show_once(row: Row) -> None:
    """Print a result that gets no row on the page."""
    print(f"before: {row.fault}: {row.detected_s} s, {row.line!r}, {row.then}", flush=True)


def injected_once(fault: Fault, run: Run) -> Row:
    """Inject a fault once, wait until it is reported, and observe what the run does then."""
    first_line = len(run.lines)
    if fault.trigger is None:
        injected_s = fault.inject(run)
    else:
        if not fault.is_at_start:
            run.trigger(*fault.trigger)
        injected_s = run.injected_at(fault.trigger[0], START_S)
    found = run.first(f"{REPORTED}|{fault.pattern}", injected_s, DEADLINE_S)
    then, lost = aftermath(run, injected_s)
    for when, text in [line for line in run.lines[first_line:] if line[0] >= injected_s][:SHOWN_LINES]:
        print(f"    {when - injected_s:6.1f} s  {text[:200]}")
    lines = " ".join(text for when, text in run.lines[first_line:] if found and found[0] <= when <= found[0] + 2)
    return Row(
        fault=fault.title,
        detected_s=round(found[0] - injected_s, 1) if found else None,
        line=found[1].strip().replace(f"{ROOT}/", "") if found else "",
        is_culprit_right=bool(found) and Run.matches(fault.pattern, lines),
        then=then,
        lost=lost,
        date=time.strftime("%Y-%m-%d"),
        commit=commit(),
    )


def commit() -> str:
    """Return the last commit that changed the package or its configs."""
    words = ["git", "-C", ROOT, "log", "-1", "--format=%h", "--", "rlrun", "configs"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def aftermath(run: Run, injected_s: float) -> tuple[str, str]:
    """Describe what the run did (went on, ended with a status, or made no progress), and what was lost."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and run.process.poll() is None:
        after = [line for line in run.steps() if line["time_s"] > injected_s]
        if len(after) >= 2:
            break
        time.sleep(0.2)
    status = run.process.poll()
    new = [line for line in run.steps() if line["time_s"] > injected_s]
    lost = [f"{int(sum(line['num_infra_faults'] for line in new))} episodes void" if new else ""]
    back = run.first(r"all actor ranks are back at step", injected_s, 0)
    if back:
        lost.append(back[1])
    lost_text = "; ".join(text for text in lost if text and not text.startswith("0 ")) or "nothing"
    if status is not None:
        return f"ended with status {status}", lost_text
    if not new:
        return f"made no progress for {DEADLINE_S:.0f} s", lost_text
    return f"went on; that step ended {new[0]['time_s'] - injected_s:.1f} s after the fault", lost_text


def show(row: Row) -> None:
    """Write a row to the page, and print it."""
    keep(row, [fault.title for fault in FAULTS], DEADLINE_S)
    print(
        f"{row.fault}: {row.detected_s} s, {row.line!r}, right={row.is_culprit_right}, {row.then}, {row.lost}",
        flush=True,
    )


if __name__ == "__main__":
    main()
