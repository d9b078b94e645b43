"""Policies beside each other, over seeds: `python -m benchmarks.learning compared NAME=FOLDER [NAME=FOLDER …]`.

FOLDER is one that `python -m benchmarks.learning` filled; only its finished seeds are read, and nothing is trained.
Prints a Markdown table of mean success rates with the lowest and the highest seed; writes the curves of the means, in
bands from the lowest to the highest seed, to learning_compared.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import count, takewhile
from pathlib import Path
from statistics import fmean

from benchmarks.learning.seeds import Outcome, is_finished, read, standalone
from rlrun.observability.report.charts import HEIGHT, RIGHT, WIDTH, Axis, Band, Series, line_chart

PICTURE = Path("learning_compared.svg")
LEGEND_Y, LEGEND_LINE = 0.66 * HEIGHT, 14  # where the names begin, and how far they are apart


@dataclass(frozen=True)
class Setting:
    """The finished seeds of one setting, which were evaluated at the same steps."""

    name: str
    outcomes: Sequence[Outcome]

    @property
    def steps(self) -> list[int]:
        """The training steps of its evaluations."""
        return [evaluation["step"] for evaluation in self.outcomes[0].evaluations]

    @property
    def rates(self) -> list[list[float]]:
        """Success rates of all seeds, by evaluation."""
        by_seed = ([one["success_rate"] for one in outcome.evaluations] for outcome in self.outcomes)
        return [list(rates) for rates in zip(*by_seed, strict=True)]

    @property
    def most_likely(self) -> list[float]:
        """Success rates of all seeds at temperature 0."""
        return [outcome.most_likely["success_rate"] for outcome in self.outcomes]


def main(words: Sequence[str]) -> None:
    """Print the table and write the picture."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.learning compared",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture")
    given = parser.parse_args(words)
    settings = []
    for text in given.folders:
        name, _, folder = text.partition("=")
        if not is_finished(Path(folder), 0):
            parser.error(f"{text}: no finished seed 0; give NAME=FOLDER, as benchmarks.learning filled the folder")
        settings.append(setting(name, Path(folder)))
        if settings[-1].steps != settings[0].steps:
            parser.error(f"{text}: evaluated at steps {settings[-1].steps}, the first one at {settings[0].steps}")
    print(table(settings))
    given.output.write_text(chart(settings))
    print(f"\ncurves: {given.output}")


def setting(name: str, folder: Path) -> Setting:
    """Read the finished seeds of a folder, from 0."""
    seeds = takewhile(lambda seed: is_finished(folder, seed), count())
    return Setting(name, [read(folder, seed) for seed in seeds])


def table(settings: Sequence[Setting]) -> str:
    """Return one row per setting. All have evaluations at the steps of the first."""
    steps = settings[0].steps
    titles = ["warm start" if step == 0 else f"step {step}" for step in steps]
    lines = [
        f"| | seeds | {' | '.join(titles)} | at temperature 0 | minutes a seed |",
        "|---" * (len(steps) + 4) + "|",
    ]
    for one in settings:
        cells = [spread(rates) for rates in (*one.rates, one.most_likely)]
        minutes = fmean(outcome.minutes for outcome in one.outcomes)
        lines.append(f"| {one.name} | {len(one.outcomes)} | {' | '.join(cells)} | {minutes:.1f} |")
    return "\n".join(lines)


def spread(rates: Sequence[float]) -> str:
    """Return the mean, and the lowest and the highest. Example: "91 % (84 to 95)"."""
    return f"{100 * fmean(rates):.0f} % ({100 * min(rates):.0f} to {100 * max(rates):.0f})"


def chart(settings: Sequence[Setting]) -> str:
    """Return an SVG of the means over training steps, with bands and names."""
    lines, bands = [], []
    for colour, one in enumerate(settings, start=1):
        lines.append(Series(one.name, one.steps, [fmean(rates) for rates in one.rates], colour))
        bands.append(Band(one.steps, [min(rates) for rates in one.rates], [max(rates) for rates in one.rates], colour))
    picture = standalone(line_chart(lines, Axis(0.0, 1.0, is_percent=True), bands=bands))
    names = "".join(
        f'<text x="{WIDTH - RIGHT}" y="{LEGEND_Y + LEGEND_LINE * place:.0f}" text-anchor="end" '
        f'style="fill:var(--c{line.colour});font-size:12px">{escape(line.name)}</text>'
        for place, line in enumerate(lines)
    )
    return picture.replace("</svg>", f"{names}</svg>")
