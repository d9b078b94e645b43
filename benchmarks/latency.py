"""Success against latency, with and without real-time chunking: `python -m benchmarks.latency FOLDER [key=value …]`.

Trains a flow policy into FOLDER/run unless it is there (`policy=smolvla`, chunks of --planned control steps, four flow
steps), and evaluates it at temperature 0 with chunks of --executed control steps, for each delay of --delays without
and with real-time chunking, on the same starts. What was evaluated before is only read. Prints a Markdown table, and
draws FOLDER/latency.svg: success with its 95 % intervals over the delay, in control steps.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning.seeds import standalone
from rlrun.observability.report.charts import BOTTOM, HEIGHT, LEFT, Axis, Mark, Series, line_chart
from rlrun.observability.run_files import EVALUATIONS, REPORT, read_json_lines

NAMES = {False: "the next chunk is free", True: "real-time chunking"}
LINE_HEIGHT = 15  # of the names in the picture
OFFSET = 0.03  # control steps by which marks of the two lines are apart
TRAINED = ("policy=smolvla", "policy.smolvla.num_flow_steps=4")


@dataclass(frozen=True)
class Cell:
    """An evaluation."""

    delay: int  # control steps
    continues: bool  # by real-time chunking
    record: dict  # EvaluationRecord as written


def main(words: Sequence[str]) -> None:
    """Train and evaluate what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.latency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 1, 2, 3], help="control steps")
    parser.add_argument("--planned", type=int, default=8, help="control steps of the policy's chunk")
    parser.add_argument("--executed", type=int, default=4, help="control steps that an evaluation executes of it")
    parser.add_argument("--episodes", type=int, default=200, help="of each evaluation")
    known, overrides = parser.parse_known_args(words)
    train(known.folder, known.planned, overrides)
    cells = [
        Cell(delay, continues, evaluated(known, delay, continues, overrides))
        for delay in known.delays
        for continues in NAMES
    ]
    print(table(cells))
    picture = known.folder / "latency.svg"
    picture.write_text(chart(cells))
    print(f"\npicture: {picture}")


def train(folder: Path, planned: int, overrides: Sequence[str]) -> None:
    """Train the policy, unless that is done."""
    if not (folder / "run" / REPORT).exists():
        places = [f"cache_dir={folder / 'cache'}", f"output_dir={folder / 'run'}"]
        _run("rlrun.train", *TRAINED, f"policy.num_action_chunks={planned}", *overrides, *places)


def evaluated(known: argparse.Namespace, delay: int, continues: bool, overrides: Sequence[str]) -> dict:
    """Return the evaluation of one cell."""
    place = known.folder / f"delay_{delay}_{'continued' if continues else 'free'}"
    if not (place / EVALUATIONS).exists():
        settings = [
            f"checkpoint={known.folder / 'run'}",
            f"policy.num_action_chunks={known.executed}",
            f"env.action_delay={delay}",
            f"evaluation.real_time_chunking.enable={str(continues).lower()}",
            f"evaluation.num_episodes={known.episodes}",
            "evaluation.temperature=0",
            f"output_dir={place}",
        ]
        others = [one for one in overrides if not one.startswith(("run=", "policy="))]  # those are the policy's
        _run("rlrun.eval", *others, *settings)
    return list(read_json_lines(place / EVALUATIONS))[-1]


def _run(module: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", module, *words], check=True, stdout=sys.stderr)


def table(cells: Sequence[Cell]) -> str:
    """Return a Markdown table with a row for each delay."""
    lines = [f"| delay | {' | '.join(NAMES.values())} |", "|---" * (len(NAMES) + 1) + "|"]
    for delay in sorted({cell.delay for cell in cells}):
        found = {cell.continues: cell.record for cell in cells if cell.delay == delay}
        rates = [f"{r['successes']}/{r['episodes']} = {r['success_rate']:.0%}" for r in (found[key] for key in NAMES)]
        lines.append(f"| {delay} | {' | '.join(rates)} |")
    return "\n".join(lines)


def chart(cells: Sequence[Cell]) -> str:
    """Return an SVG with a line of success rates over delays, without and with real-time chunking."""
    lines = []
    marks = []
    for colour, (continues, name) in enumerate(NAMES.items(), start=1):
        own = sorted((cell for cell in cells if cell.continues is continues), key=lambda cell: cell.delay)
        lines.append(Series(name, [cell.delay for cell in own], [cell.record["success_rate"] for cell in own], colour))
        shift = OFFSET if continues else -OFFSET
        for cell in own:
            ends = cell.record["ci_low"], cell.record["ci_high"]
            marks.append(Mark(cell.delay + shift, cell.record["success_rate"], *ends, f"{name}, delay {cell.delay}"))
    drawing = standalone(line_chart(lines, Axis(0.0, 1.0, is_percent=True), marks))
    names = "".join(
        f'<text x="{LEFT + 8}" y="{HEIGHT - BOTTOM - LINE_HEIGHT * line.colour}" '
        f'style="fill:var(--c{line.colour});font:12px sans-serif">{line.name}</text>'
        for line in lines
    )
    return drawing.replace("</svg>", f"{names}</svg>")


if __name__ == "__main__":
    main(sys.argv[1:])
