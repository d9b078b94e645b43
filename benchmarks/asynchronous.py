"""Learning per second of the asynchronous loop: `python -m benchmarks.asynchronous FOLDER [seeds=N] [key=value …]`.

Runs `rlrun.train` and `rlrun.train_async` one after the other from the same warm start, for each seed (0 to N-1, 3 of
them by default), into `FOLDER/SEED/PROGRAM`; a run that is complete there is only read. Success is that of training
episodes, averaged over ten steps; seconds are those spent in training steps, without start, evaluations and
checkpoints. One number for a whole run: success averaged over the seconds that both programs trained for.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import mean, median

import numpy as np

from rlrun.observability.run_files import EVALUATIONS, METRICS, read_json_lines

Run = tuple[list[dict], list[dict]]  # metrics of every step, all evaluations

PROGRAMS = ("train", "train_async")
SEEDS = 3
WINDOW = 10  # training steps
LEVELS = (0.6, 0.7, 0.8, 0.9)


def main() -> None:
    """Train missing runs, then compare them."""
    words = [word for word in sys.argv[1:] if "=" not in word]
    if len(words) != 1:
        sys.exit(__doc__)
    given = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith("seeds="))
    overrides = [word for word in sys.argv[1:] if "=" in word and word.split("=")[0] not in given]
    folder, seeds = Path(words[0]), range(int(given.get("seeds", SEEDS)))
    runs = {seed: {program: trained(program, folder, seed, overrides) for program in PROGRAMS} for seed in seeds}
    titles = ["seed", "program", "steps", "s per step", "policy age", *(f"{level:.0%} after" for level in LEVELS)]
    print(row([*titles, "at the end"]))
    print(row(["---"] * (len(titles) + 1)))
    for seed, by_program in runs.items():
        for program, run in by_program.items():
            print(row([str(seed), f"rlrun.{program}", *cells(run)]))
    means = [mean_success(by_program) for by_program in runs.values()]
    each = ", ".join(f"{beside / before:.2f}" for before, beside in means)
    ratio = median(beside / before for before, beside in means)
    print(f"mean success of train_async / of train, over the same seconds: {ratio:.2f} ({each})")
    for level in LEVELS:
        print(f"seconds of train / seconds of train_async to {level:.0%}: {compared(list(runs.values()), level)}")


def cells(run: Run) -> list[str]:
    """One run's entries of the table."""
    metrics, evaluations = run
    reached = [seconds_until(metrics, level) for level in LEVELS]
    return [
        f"{metrics[-1]['step']:.0f}",
        f"{median(line['step_s'] for line in metrics):.2f}",
        f"{mean(line['policy_age'] for line in metrics):.2f}",
        *(f"{seconds:.0f} s" if seconds is not None else "-" for seconds in reached),
        f"{evaluations[-1]['successes']}/{evaluations[-1]['episodes']}",
    ]


def compared(runs: list[dict[str, Run]], level: float) -> str:
    """Return the median over the seeds with which both programs reach `level`, and the values."""
    pairs = [[seconds_until(by_program[program][0], level) for program in PROGRAMS] for by_program in runs]
    ratios = [before / beside for before, beside in pairs if before is not None and beside is not None]
    if not ratios:
        return "not reached by both"
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{median(ratios):.2f} ({each}; {len(ratios)} of {len(runs)} seeds)"


def row(cells: list[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def trained(program: str, folder: Path, seed: int, overrides: list[str]) -> Run:
    """Return one run; trains it if it does not exist."""
    run_dir = folder / str(seed) / program
    if not (run_dir / "report.html").exists():
        settings = [f"seed={seed}", f"output_dir={run_dir}", f"cache_dir={folder}/cache"]
        subprocess.run([sys.executable, "-m", f"rlrun.{program}", *overrides, *settings], check=True, stdout=sys.stderr)
    return list(read_json_lines(run_dir / METRICS)), list(read_json_lines(run_dir / EVALUATIONS))


def mean_success(by_program: dict[str, Run]) -> list[float]:
    """Return, by program, the success rate averaged over the seconds that both trained."""
    both_s = min(metrics[-1]["elapsed_s"] for metrics, _ in by_program.values())
    means = []
    for metrics, _ in by_program.values():
        ends = np.minimum([line["elapsed_s"] for line in metrics], both_s)
        means.append(np.average([line.get("success_rate", 0.0) for line in metrics], weights=np.diff(ends, prepend=0)))
    return means


def seconds_until(metrics: list[dict], level: float) -> float | None:
    """Return the seconds of training until the averaged success rate reaches `level`, or None."""
    for last in range(WINDOW, len(metrics) + 1):
        if mean(line.get("success_rate", 0.0) for line in metrics[last - WINDOW : last]) >= level:
            return metrics[last - 1]["elapsed_s"]
    return None


if __name__ == "__main__":
    main()
