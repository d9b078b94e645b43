"""Whether a run learns, over several seeds: `python -m benchmarks.learning FOLDER [--seeds N] [key=value …]`.

Runs `rlrun.train` once per seed into FOLDER/seed_0, FOLDER/seed_1, …; each makes its own demonstrations and warm
start. Then it evaluates the trained policy at temperature 0: the most likely actions, of a flow policy the ODE. A seed
that is already complete there is only read. Prints a Markdown table and how long successful episodes took at the
beginning and at the end of training; writes the curves to FOLDER/learning.svg, and how the first and the last
evaluation of seed 0 ended to FOLDER/before_and_after.png.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import imageio.v3 as iio
import numpy as np

from rlrun.observability.report.charts import HEIGHT, STYLE, WIDTH, Axis, Mark, Series, line_chart
from rlrun.observability.run_files import EPISODES, EVALUATIONS, METRICS, REPORT, VIDEOS, read_json_lines

GAP = 12  # pixels between the two halves of the picture
PACE_STEPS = 5  # training steps at each end over which the pace is taken


@dataclass(frozen=True)
class Outcome:
    """A finished run, read from its folder."""

    seed: int
    evaluations: list[dict]  # EvaluationRecord as written, in order of steps
    metrics: list[dict]
    episodes: list[dict]  # of training, EpisodeReport as written
    most_likely: dict  # EvaluationRecord of the trained policy at temperature 0

    @property
    def minutes(self) -> float:
        """Seconds in training steps, without start, warm start and evaluations."""
        return self.metrics[-1]["elapsed_s"] / 60


def main(words: Sequence[str]) -> None:
    """Train missing runs, then print the results."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    known, overrides = parser.parse_known_args(words)
    outcomes = [outcome(known.folder, seed, overrides) for seed in range(known.seeds)]
    print(table(outcomes))
    print(f"\n{pace(outcomes)}")
    picture = known.folder / "learning.svg"
    picture.write_text(chart(outcomes))
    stills = known.folder / "before_and_after.png"
    before_and_after(known.folder / "seed_0" / VIDEOS, stills)
    print(f"\ncurves: {picture}\npicture: {stills}")


def outcome(folder: Path, seed: int, overrides: list[str]) -> Outcome:
    """Train with `seed`, unless the run exists."""
    run_dir, calm_dir = _places(folder, seed)
    same = [f"seed={seed}", f"cache_dir={folder / f'cache_{seed}'}"]
    if not (run_dir / REPORT).exists():
        _run("rlrun.train", *overrides, *same, f"output_dir={run_dir}")
    if not (calm_dir / EVALUATIONS).exists():
        settings = [f"checkpoint={run_dir}", "evaluation.temperature=0", f"output_dir={calm_dir}"]
        others = [one for one in overrides if not one.startswith("run=")]  # the policy's folder says which run it is of
        _run("rlrun.eval", *others, *same, *settings)
    return read(folder, seed)


def is_finished(folder: Path, seed: int) -> bool:
    """Return whether this seed has been trained and evaluated."""
    run_dir, calm_dir = _places(folder, seed)
    return (run_dir / REPORT).exists() and (calm_dir / EVALUATIONS).exists()


def read(folder: Path, seed: int) -> Outcome:
    """Read a finished seed."""
    run_dir, calm_dir = _places(folder, seed)
    return Outcome(
        seed,
        list(read_json_lines(run_dir / EVALUATIONS)),
        list(read_json_lines(run_dir / METRICS)),
        list(read_json_lines(run_dir / EPISODES)),
        list(read_json_lines(calm_dir / EVALUATIONS))[-1],
    )


def _places(folder: Path, seed: int) -> tuple[Path, Path]:
    """Return the folders of the run, and of the evaluation at temperature 0."""
    return folder / f"seed_{seed}", folder / f"most_likely_{seed}"


def _run(module: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", module, *words], check=True, stdout=sys.stderr)


def table(outcomes: list[Outcome]) -> str:
    """Print one row per seed: the success rate at every evaluation, and the time."""
    steps = [evaluation["step"] for evaluation in outcomes[0].evaluations]
    lines = [
        "| seed | "
        + " | ".join("warm start" if step == 0 else f"step {step}" for step in steps)
        + " | at temperature 0 | env steps | min |",
        "|---" * (len(steps) + 4) + "|",
    ]
    for run in outcomes:
        evaluations = [*run.evaluations, run.most_likely]
        rates = [f"{e['successes']}/{e['episodes']} = {100 * e['success_rate']:.0f} %" for e in evaluations]
        cells = [str(run.seed), *rates, f"{run.metrics[-1]['env_steps']:,.0f}", f"{run.minutes:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pace(outcomes: list[Outcome]) -> str:
    """Print the control steps of successful training episodes in the first and last steps, median over seeds."""
    last = outcomes[0].metrics[-1]["step"]
    medians = [
        median(
            episode["num_control_steps"]
            for run in outcomes
            for episode in run.episodes
            if episode["success"] and first <= episode["step"] < first + PACE_STEPS
        )
        for first in (1, last - PACE_STEPS + 1)
    ]
    return (
        f"Successful episodes take {medians[0]:g} control steps in the first {PACE_STEPS} training steps and "
        f"{medians[1]:g} in the last {PACE_STEPS} (medians)."
    )


def chart(outcomes: list[Outcome]) -> str:
    """Return an SVG of the training success rate per seed and of evaluations with intervals."""
    lines = []
    for colour, run in enumerate(outcomes, start=1):
        rates = [line.get("success_rate") for line in run.metrics]
        lines.append(Series(f"seed {run.seed}", [line["step"] for line in run.metrics], rates, colour))
    marks = [
        Mark(e["step"], e["success_rate"], e["ci_low"], e["ci_high"], f"seed {run.seed}, step {e['step']}")
        for run in outcomes
        for e in run.evaluations
    ]
    return standalone(line_chart(lines, Axis(0.0, 1.0, is_percent=True), marks))


def standalone(chart_in_page: str) -> str:
    """Return the chart of a page as an SVG file with its own style, without legend."""
    drawing = chart_in_page.split("</svg>")[0] + "</svg>"
    size = f'xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{2 * HEIGHT}"'
    background = f'<style>{STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="var(--card)"/>'
    opening, rest = drawing.split(">", 1)
    return f"{opening.replace('<svg', f'<svg {size}')}>{background}{rest}\n"


def before_and_after(videos: Path, picture: Path) -> None:
    """Join the last frames of the first and the last video."""
    films = sorted(videos.glob("evaluation-*.mp4"))
    before, after = (iio.imread(film)[-1] for film in (films[0], films[-1]))
    gap = np.full((before.shape[0], GAP, 3), 255, np.uint8)
    iio.imwrite(picture, np.concatenate([before, gap, after], axis=1))
