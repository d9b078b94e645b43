"""The table that is pasted into docs/gpu.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks.gpu.row import Outcome, Result


def markdown(title: str, results: Sequence[Result]) -> str:
    """Return a heading, one line per result, and the counts."""
    lines = [f"### {title}", "", "| measured | expected | seen | |", "|---|---|---|---|"]
    for result in results:
        cells = (result.name, result.expected, result.seen, result.outcome)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    counts = Counter(result.outcome for result in results)
    summary = ", ".join(f"{counts[outcome.value]} {outcome.value}" for outcome in Outcome if counts[outcome.value])
    return "\n".join([*lines, "", f"{len(results)} rows: {summary}."])


def is_passed(results: Sequence[Result]) -> bool:
    """Return whether no number is off, and a budget that ended has left something measured."""
    outcomes = {result.outcome for result in results}
    nothing = {Outcome.left_out.value, Outcome.not_reached.value}
    return Outcome.off.value not in outcomes and (Outcome.not_reached.value not in outcomes or bool(outcomes - nothing))
