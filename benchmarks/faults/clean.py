"""`python -m benchmarks.faults clean FOLDER [key=value …]` counts the alarms of ten runs without faults.

Each run has its own seed and is kept as FOLDER/seed_0, …, where `python -m benchmarks.learning FOLDER` reads it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.page import CleanRun, keep_clean
from benchmarks.faults.run import ALARM, WARNING, Run

NUM_PLAIN = 8
DEADLINE_S = 7200.0
SPIN = "while True: pass"


def clean_runs(kept: Path, deadline_s: float, overrides: Sequence[str]) -> None:
    """Start the runs one after another into `kept`, and write the page after each."""
    kept.mkdir(parents=True)  # must be new, so that all its runs are of one state of the code
    what = " with ".join(["the default configuration", *([f"`{' '.join(overrides)}`"] if overrides else [])])
    what += ", each run with another seed"
    runs: list[CleanRun] = []
    with tempfile.TemporaryDirectory(prefix="rlrun-clean-", ignore_cleanup_errors=True) as folder:
        for number in range(NUM_PLAIN + 2):
            name, busy, slow = f"{number + 1}", 0, False
            if number == NUM_PLAIN:
                name, busy = f"{number + 1}, with {2 * (os.cpu_count() or 1)} processes that only compute beside it", 2
            if number == NUM_PLAIN + 1:
                name, slow = f"{number + 1}, with simulators that load for 60 s, counting parts", True
            run, done = _clean_run(name, Path(folder), number, overrides, busy * (os.cpu_count() or 1), slow)
            runs.append(done)
            shutil.copytree(run.run_dir, kept / f"seed_{number}")
            keep_clean(runs, what, deadline_s)
            print(runs[-1], flush=True)


def _clean_run(
    name: str, folder: Path, seed: int, overrides: Sequence[str], num_busy: int, is_slow: bool
) -> tuple[Run, CleanRun]:
    """Start one run and wait for its end. Raises SystemExit if its exit status is not 0."""
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(num_busy)]
    triggers = {"env-0.load": "slow", "env-1.load": "slow"} if is_slow else {}
    run = Run(folder / f"{seed}", f"seed={seed}", base=overrides, triggers=triggers)
    try:
        status = run.process.wait(timeout=DEADLINE_S)
    finally:
        run.end()
        for spinner in spinners:
            spinner.kill()
    if status:
        raise SystemExit(f"run {name} ended with status {status}:\n{run.log.read_text()}")
    lines = [text for _, text in run.lines if not text.startswith("doctor: ")]
    alarms = [text for text in lines if re.search(ALARM, text)]
    warnings = [text for text in lines if re.search(WARNING, text)]
    return run, CleanRun(name, len(run.steps()), round(time.time() - run.started_s, 1), alarms, warnings)
