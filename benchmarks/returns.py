"""Returns of training episodes beside control steps: `python -m benchmarks.returns RUN … [--every N]`.

RUN: folders of runs, finished or not, such as seeds of one. Prints a Markdown table with a row for every N control
steps: the mean return of the episodes that ended nearest to it, a column for each run, and the mean of all. So CleanRL
shows SAC and PPO on Gymnasium's environments; evaluations, at temperature 0, are in `evaluations.jsonl` of each run.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rlrun.observability.run_files import METRICS, read_json_lines


def main() -> int:
    """Print the table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--every", type=int, default=4000, help="control steps of a row")
    known = parser.parse_args()
    missing = [str(run) for run in known.runs if not (run / METRICS).exists()]
    if missing or known.every < 1:
        print(f"no {METRICS} in {', '.join(missing)}" if missing else "--every: at least 1", file=sys.stderr)
        return 2
    runs = {run.name: returns(list(read_json_lines(run / METRICS)), known.every) for run in known.runs}
    print(table(runs, known.every))
    return 0


def returns(metrics: Sequence[dict], every: int) -> dict[int, float]:
    """Return the mean return of episodes by the row nearest to which they ended; rows without episodes are absent.

    metrics: lines of a run's metrics. The episodes of a training step count where it ended.
    """
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for line in metrics:
        if line["num_episodes"]:
            found[round(line["env_steps"] / every)].append((line["episode_return"], line["num_episodes"]))
    return {row: fmean(*zip(*ended, strict=True)) for row, ended in found.items()}


def table(runs: dict[str, dict[int, float]], every: int) -> str:
    """Return the table of several runs. The mean is over runs that came so far."""
    lines = [f"| control steps | {' | '.join(runs)} | mean |", "|---" * (len(runs) + 2) + "|"]
    for row in sorted({row for found in runs.values() for row in found}):
        reached = [found[row] for found in runs.values() if row in found]
        cells = [f"{found[row]:,.0f}" if row in found else "" for found in runs.values()]
        lines.append(f"| {row * every:,} | {' | '.join(cells)} | {fmean(reached):,.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
