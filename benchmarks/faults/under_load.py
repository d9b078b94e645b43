"""`python -m benchmarks.faults under_load [NUM_RUNS]` tries the watchers beside twelve busy processes a core.

Ten runs of the default configuration on Ray, of two steps each, must end with status 0 without an alarm, a warning
about a worker, or a replacement. Then three faults are injected under the same load, and their culprits must be named.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.run import REPORTED, Run

NUM_RUNS = 10
BUSY_PER_CORE = 12
DEADLINE_S = 7200.0  # for a run to end, and for a fault to be reported; the machine is slow
SHORT = ("num_steps=2", "evaluation.num_episodes=4", "logging.video_episodes=0")
FAULTS = {  # call and kind, see plug_in/sitecustomize.py -> pattern of the line that names the culprit
    ("env-1.step_chunk", "killed"): r"env/1.*its process ended",
    ("env-1.step_chunk", "stopped"): r"env\[?/?1.*is stopped",
    ("rollout-0.act", "raises"): r"rollout/0.*failed",
}
SPIN = "while True: pass"


def under_load(num_runs: int) -> None:
    """Print a line a run and a fault. Raises SystemExit if a healthy run was accused, or a culprit not named."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rlrun-load-", ignore_cleanup_errors=True) as folder, _busy_machine():
        for number in range(num_runs):
            wrong += _healthy(number, Path(folder) / f"{number}")
        for (call, kind), pattern in FAULTS.items():
            wrong += _faulty(call, kind, pattern, Path(folder) / f"{call}-{kind}")
    if wrong:
        raise SystemExit("\n".join(wrong))


@contextmanager
def _busy_machine() -> Iterator[None]:
    count = BUSY_PER_CORE * (os.cpu_count() or 1)
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()


def _healthy(number: int, folder: Path) -> Sequence[str]:
    """Return what was wrongly said about a run without faults."""
    run = Run(folder, f"seed={number}", base=SHORT)
    try:
        status = run.process.wait(timeout=DEADLINE_S)
    finally:
        run.end()
    told = [text for _, text in run.lines if re.search(REPORTED, text) and not text.startswith("doctor: ")]
    print(f"run {number + 1}: status {status}, {len(told)} accusations", flush=True)
    return [f"run {number + 1}: {text}" for text in [*told, *([f"status {status}"] if status else [])]]


def _faulty(call: str, kind: str, pattern: str, folder: Path) -> Sequence[str]:
    """Return what is wrong with the report of an injected fault."""
    run = Run(folder)
    try:
        run.trigger(call, kind)
        injected_s = run.injected_at(call, DEADLINE_S)
        found = run.first(pattern, injected_s, DEADLINE_S)
        others = run.first(REPORTED, injected_s, 0.0)
    finally:
        run.end()
    print(f"{call} {kind}: {found[1].strip()[:160] if found else 'not told'}", flush=True)
    return [] if found else [f"{call} {kind}: first line {others[1] if others else 'none'}"]
