"""`python -m benchmarks.faults clean`: ten runs of the default configuration in which nothing fails; what was said?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults.page import CleanRun, keep_clean
from benchmarks.faults.run import ALARM, FOREWARNING, Run

NUM_STEPS = 3
SETTINGS = (
    f"num_steps={NUM_STEPS}",
    "evaluation.num_episodes=8",
    "logging.video_episodes=0",
    "demos.num_episodes=8",
    "sft.num_steps=10",
    "sft.lr_warmup_steps=2",
)
WHAT = (
    f"the default configuration, shortened to {NUM_STEPS} training steps, 8 evaluation episodes before and after them, "
    "and in the first run 10 steps of imitation of 8 demonstrations"
)
NUM_PLAIN = 8
DEADLINE_S = 1800.0
SPIN = "while True: pass"


def clean_runs(deadline_s: float) -> None:
    """Run them one after another, and write the page after each."""
    runs: list[CleanRun] = []
    with tempfile.TemporaryDirectory(prefix="rlrun-clean-", ignore_cleanup_errors=True) as folder:
        for number in range(NUM_PLAIN + 2):
            name, busy, slow = f"{number + 1}", 0, False
            if number == NUM_PLAIN:
                name, busy = f"{number + 1}, with {2 * (os.cpu_count() or 1)} processes that only compute beside it", 2
            if number == NUM_PLAIN + 1:
                name, slow = f"{number + 1}, with simulators that load for 60 s, counting parts", True
            runs.append(_clean_run(name, Path(folder) / f"{number}", busy * (os.cpu_count() or 1), slow))
            keep_clean(runs, WHAT, deadline_s)
            print(runs[-1], flush=True)


def _clean_run(name: str, folder: Path, num_busy: int, is_slow: bool) -> CleanRun:
    """One run to its end. Raises SystemExit when it does not end well."""
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(num_busy)]
    orders = {"env-0.load": "slow", "env-1.load": "slow"} if is_slow else {}
    run = Run(folder, base=SETTINGS, orders=orders)
    try:
        status = run.process.wait(timeout=DEADLINE_S)
    finally:
        run.end()
        for spinner in spinners:
            spinner.kill()
    if status:
        raise SystemExit(f"run {name} ended with status {status}:\n{run.log.read_text()}")
    told = [text for _, text in run.lines if not text.startswith("preflight: ")]
    alarms = [text for text in told if re.search(ALARM, text)]
    forewarnings = [text for text in told if re.search(FOREWARNING, text)]
    return CleanRun(name, len(run.steps()), round(time.time() - run.started_s, 1), alarms, forewarnings)
