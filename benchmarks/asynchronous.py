"""Learning per second with collection beside the update: `python -m benchmarks.asynchronous FOLDER [key=value …]`.

Runs `rlrun.train` and `rlrun.train_async` one after the other from the same warm start, each into a folder of its own
below FOLDER; a run that is complete there is only read. Success is that of training episodes, averaged over ten
steps; seconds are those spent in training steps, without start, evaluations and checkpoints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import mean, median

from rlrun.observability.run_files import EVALUATIONS, METRICS, read_json_lines

PROGRAMS = ("train", "train_async")
WINDOW = 10  # training steps
LEVELS = (0.6, 0.7, 0.8, 0.9)


def main() -> None:
    """Train what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    known, overrides = parser.parse_known_args()
    runs = {program: trained(program, known.folder, overrides) for program in PROGRAMS}
    print(
        row(["program", "steps", "s per step", "policy age", *(f"{level:.0%} after" for level in LEVELS), "at the end"])
    )
    print(row(["---"] * (5 + len(LEVELS))))
    for program, (metrics, evaluations) in runs.items():
        reached = [seconds_until(metrics, level) for level in LEVELS]
        cells = [f"rlrun.{program}", f"{metrics[-1]['step']:.0f}", f"{median(m['step_s'] for m in metrics):.2f}"]
        cells += [f"{mean(m['policy_age'] for m in metrics):.2f}"]
        cells += [f"{seconds:.0f} s" if seconds is not None else "-" for seconds in reached]
        print(row([*cells, f"{evaluations[-1]['successes']}/{evaluations[-1]['episodes']}"]))
    for level in LEVELS:
        before, beside = (seconds_until(runs[program][0], level) for program in PROGRAMS)
        if before and beside:
            print(f"seconds of train / seconds of train_async to {level:.0%}: {before / beside:.2f}")


def row(cells: list[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def trained(program: str, folder: Path, overrides: list[str]) -> tuple[list[dict], list[dict]]:
    """Metrics of every step and all evaluations of one run, which is made unless it is there."""
    run_dir = folder / program
    if not (run_dir / "report.html").exists():
        settings = [f"output_dir={run_dir}", f"cache_dir={folder}/cache"]
        subprocess.run([sys.executable, "-m", f"rlrun.{program}", *overrides, *settings], check=True, stdout=sys.stderr)
    return list(read_json_lines(run_dir / METRICS)), list(read_json_lines(run_dir / EVALUATIONS))


def seconds_until(metrics: list[dict], level: float) -> float | None:
    """Seconds of training until the averaged success rate is at `level`; None: it never was."""
    for last in range(WINDOW, len(metrics) + 1):
        if mean(line.get("success_rate", 0.0) for line in metrics[last - WINDOW : last]) >= level:
            return metrics[last - 1]["elapsed_s"]
    return None


if __name__ == "__main__":
    main()
