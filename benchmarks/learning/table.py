"""Every policy by every algorithm: `python -m benchmarks.learning table [FOLDER] [--only WORD …] [--print]`.

Each cell is a run in a quick world (`quick_world.py`) with two seeds, from a warm start or from nothing, in FOLDER
(runs/learning_table). A finished run there is only read. Cells whose titles have all WORDs are run; the others stay as
measured before. A seed is one process on one core; the seeds run beside each other. Writes the tables of
docs/learning.md and docs/policies.md from docs/learning_table.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.learning.cells import ALGORITHMS, CELLS, KINDS, WORLD, Cell, Kind
from rlrun.observability.run_files import EVALUATIONS, METRICS, REPORT, read_json_lines

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "docs/learning_table.json"
PAGE, SUMMARY = ROOT / "docs/learning.md", ROOT / "docs/policies.md"
BEGIN, END = "<!-- written by benchmarks.learning table -->", "<!-- end of the table -->"
SEEDS = (0, 1)
FOLDER = Path("runs/learning_table")
SECONDS_LIMIT = 3600


@dataclass(frozen=True)
class Curve:
    """The evaluations of one seed."""

    seed: int
    steps: list[int]
    successes: list[int]
    episodes: int
    low: list[float]  # bounds of the 95 % intervals
    high: list[float]
    minutes: float  # of training steps; other runs took turns on the machine

    @property
    def learned(self) -> bool:
        """Whether the interval of the last evaluation is above that of the first."""
        return self.low[-1] > self.high[0]

    @property
    def text(self) -> str:
        """Success rates in per cent. Example: "31 → 40 → 62"."""
        return " → ".join(f"{100 * count / self.episodes:.0f}" for count in self.successes)


@dataclass(frozen=True)
class Row:
    """The result of a cell."""

    title: str
    curves: list[Curve]
    commit: str
    date: str

    @property
    def learned(self) -> bool:
        """Whether every seed learned."""
        return all(curve.learned for curve in self.curves)

    @classmethod
    def of(cls, stored: Mapping) -> Row:
        """Return a stored row."""
        return cls(**{**stored, "curves": [Curve(**curve) for curve in stored["curves"]]})


def main(words: Sequence[str]) -> None:
    """Train the missing cells, and write the tables."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.learning table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="words of the titles of cells")
    parser.add_argument("--print", action="store_true", help="train nothing, and print the table")
    given = parser.parse_args(words)
    if not given.print:
        for cell in CELLS:
            if all(word.lower() in cell.title.lower() for word in given.only):
                keep(trained(cell, given.folder))
        write()
    print(table(rows()))


def trained(cell: Cell, folder: Path) -> Row:
    """Train the seeds of a cell beside each other, unless they exist. Raises SystemExit if a run ends with an error."""
    with ThreadPoolExecutor(len(SEEDS)) as pool:
        curves = list(pool.map(lambda seed: _curve(cell, folder, seed), SEEDS))
    row = Row(cell.title, curves, _commit(), time.strftime("%Y-%m-%d"))
    print(f"{row.title}: {'; '.join(curve.text for curve in curves)}", file=sys.stderr, flush=True)
    return row


def _curve(cell: Cell, folder: Path, seed: int) -> Curve:
    run_dir = folder.resolve() / cell.name / f"seed_{seed}"
    if not (run_dir / REPORT).exists():
        places = [f"seed={seed}", f"cache_dir={folder.resolve() / f'cache_{seed}'}", f"output_dir={run_dir}"]
        command = [sys.executable, "-m", "rlrun.train", *WORLD, *cell.keys, *places]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_LIMIT, check=False
        )
        if done.returncode:
            raise SystemExit(f"{cell.title}, seed {seed}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    found = list(read_json_lines(run_dir / EVALUATIONS))
    minutes = list(read_json_lines(run_dir / METRICS))[-1]["elapsed_s"] / 60
    return Curve(
        seed,
        [one["step"] for one in found],
        [one["successes"] for one in found],
        found[0]["episodes"],
        [one["ci_low"] for one in found],
        [one["ci_high"] for one in found],
        round(minutes, 1),
    )


def _commit() -> str:
    """Return the last commit that changed the package, its configs or the quick world."""
    words = ["git", "-C", ROOT, "log", "-1", "--format=%h", "--", "rlrun", "configs", "benchmarks/learning"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def rows() -> dict[str, Row]:
    """Return the stored rows by title, in the order of the cells."""
    stored = json.loads(ROWS.read_text()) if ROWS.exists() else []
    found = {row["title"]: Row.of(row) for row in stored}
    return {cell.title: found[cell.title] for cell in CELLS if cell.title in found}


def keep(row: Row) -> None:
    """Store a row; one that has the stored curves, from runs that existed, keeps the commit that trained them."""
    stored = rows()
    if row.title in stored and stored[row.title].curves == row.curves:
        return
    found = stored | {row.title: row}
    ROWS.write_text(json.dumps([asdict(one) for one in found.values()], indent=1) + "\n")


def write() -> None:
    """Write the tables of both pages from the stored rows."""
    found = rows()
    for page, text in ((PAGE, table(found)), (SUMMARY, summary(found))):
        page.write_text(replaced(page.read_text(), text))


def replaced(page: str, text: str) -> str:
    """Return a page whose part between the marks is `text`. Raises ValueError if it has no marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def table(found: Mapping[str, Row]) -> str:
    """Return a row for each cell: success in per cent at its evaluations, by seed."""
    lines = ["| policy | by | steps | seed 0 | seed 1 | learned | minutes | commit |", "|---" * 8 + "|"]
    for cell in CELLS:
        row = found.get(cell.title)
        if row is None:
            lines.append(f"| {cell.kind.name} | {ALGORITHMS[cell.algorithm]} | | not run | | | | |")
            continue
        steps = ", ".join(map(str, row.curves[0].steps))
        minutes = ", ".join(f"{curve.minutes:.1f}" for curve in row.curves)
        curves = " | ".join(curve.text for curve in row.curves)
        learned = "yes" if row.learned else "**no**"
        cells = [
            cell.kind.name,
            ALGORITHMS[cell.algorithm],
            steps,
            curves,
            learned,
            minutes,
            f"{row.commit}, {row.date}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(found: Mapping[str, Row]) -> str:
    """Return a row for each kind and a column for each algorithm: mean success before and after, in per cent."""
    names = list(ALGORITHMS)
    lines = [f"| | {' | '.join(ALGORITHMS.values())} |", "|---" * (len(names) + 1) + "|"]
    for kind in KINDS:
        if not kind.beside:
            cells = [_summarized(found, kind, name) for name in names]
            lines.append(f"| {kind.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _summarized(found: Mapping[str, Row], kind: Kind, algorithm: str) -> str:
    """Return the cell of a kind, or of one that stands in its row."""
    those = [one for one in KINDS if kind.name in (one.name, one.beside) and algorithm in one.algorithms]
    if not those:
        return ""
    row = found.get(Cell(those[0], algorithm).title)
    if row is None:
        return "not run"
    before, after = (_mean_rate(row.curves, place) for place in (0, -1))
    return f"{before:.0f} → {after:.0f}" + ("" if row.learned else " (not learned)")


def _mean_rate(curves: Iterable[Curve], place: int) -> float:
    """Return the success rate of all seeds at an evaluation, in per cent."""
    curves = list(curves)
    return 100 * sum(one.successes[place] for one in curves) / sum(one.episodes for one in curves)
