"""Comparison of runs as one page: final success, curves over seeds with bands, differing settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path

from rlrun.observability.records import EvaluationRecord, RunRecord, read_run
from rlrun.observability.report.charts import STYLE, Axis, Band, Series, line_chart
from rlrun.observability.report.curves import main_curves_of
from rlrun.observability.report.differences import SEED, Difference, RunGroup, curve, evaluation_curve, group_runs
from rlrun.observability.report.own_numbers import compared_names
from rlrun.observability.run_files import CONFIG, METRICS, REPORT
from rlrun.observability.step_line import percent
from rlrun.system.errors import escape_control

NUM_COLOURS = 8
BAR = 160  # width of the bar of a success rate, pixels


def run_folders(places: Sequence[Path]) -> list[Path]:
    """Return the run folders among `places` and directly inside them, such as those of a sweep.

    Raises FileNotFoundError for a place without any.
    """
    folders: list[Path] = []
    for place in places:
        inside = sorted(path for path in place.iterdir() if _is_run(path)) if place.is_dir() else []
        mine = [place] if _is_run(place) else inside
        if not mine:
            raise FileNotFoundError(f"{place} is no run directory, and has none inside")
        folders += mine
    return list(dict.fromkeys(folders))


def write_comparison(folders: Sequence[Path], path: Path) -> Path:
    """Write the page that compares runs. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page = comparison_page([read_run(folder) for folder in folders], path.parent)
    path.write_text(escape_control(page), encoding="utf-8")
    return path


def comparison_page(runs: Sequence[RunRecord], place: Path) -> str:
    """Return the page as HTML. place: its folder, from which links lead to the runs' own reports."""
    groups = group_runs(runs)
    title = f"{len(runs)} runs · rlrun report"
    sections = (
        f'<header><span class="brand">rlrun</span><h1>{len(runs)} runs compared</h1></header>',
        _section("Final success", _results(groups), "last evaluation on fixed seeds; runs of a row differ in the seed"),
        _section("Curves", _curves(groups), "bold: mean of the seeds; band: from the lowest to the highest seed"),
        *_own_numbers(groups),
        _section("What differs", _differences(groups)),
        _section("Runs", _runs(groups, place)),
        f"<footer>Written by rlrun on {time.strftime('%Y-%m-%d %H:%M:%S')}.</footer>",
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _is_run(folder: Path) -> bool:
    return (folder / METRICS).is_file() or (folder / CONFIG).is_file()


def _section(title: str, content: str, remark: str = "") -> str:
    return f"<h2>{escape(title)}<small>{escape(remark)}</small></h2>{content}"


def _colour(number: int) -> int:
    return 1 + number % NUM_COLOURS


def _dot(number: int) -> str:
    return f'<i class="dot" style="background:var(--c{_colour(number)})"></i>'


def _results(groups: Sequence[RunGroup]) -> str:
    rows = []
    best, others = best_of(groups)
    is_clear = bool(others) and all(difference.is_clear for difference in others.values())
    for number, group in enumerate(groups):
        name = f"<td>{_dot(number)}{escape(group.label)}</td>"
        if group.success is None:
            rows.append(f"<tr>{name}<td colspan=6>not evaluated yet</td><td class=num>{len(group.runs)}</td></tr>")
            continue
        rate, low, high = group.success
        rates = [evaluation.success_rate for evaluation in group.last]
        spread = percent(rates[0]) if len(rates) == 1 else f"{percent(min(rates))} to {percent(max(rates))}"
        text = f"<b>{percent(rate)}</b>" if group is best and is_clear else percent(rate)
        text += f" <small>{percent(low)} to {percent(high)}</small>"
        mean = sum(evaluation.mean_return for evaluation in group.last) / len(group.last)
        rows.append(
            f"<tr>{name}<td class=num>{group.steps}</td>"
            f"<td>{text}</td><td>{_bar(rate, low, high)}</td><td>{_less(others.get(number))}</td>"
            f"<td class=num>{spread}</td>"
            f"<td class=num>{mean:.4g}</td><td class=num>{len(group.runs)}</td></tr>"
        )
    head = (
        "<tr><th>setting</th><th class=num>after step</th>"
        "<th>success, 95 % interval</th><th></th><th>difference to the best</th>"
        "<th class=num>by seed</th>"
        "<th class=num>return</th><th class=num>runs</th></tr>"
    )
    remark = (
        '<p class="soft">The interval of a success is Wilson\'s for the episodes of all seeds together. A difference '
        "compares episodes of equal reset seeds, or training seeds where there are several. The best success is bold "
        "only if every difference excludes 0.</p>"
    )
    return _wide_table(head + "".join(rows), remark)


def best_of(groups: Sequence[RunGroup]) -> tuple[RunGroup | None, dict[int, Difference]]:
    """Return the group with the highest success, and what the others lack to it, by their numbers."""
    best = max((group for group in groups if group.success), key=lambda group: group.success or (), default=None)
    if best is None:
        return None, {}
    differences = {number: group.difference_to(best) for number, group in enumerate(groups) if group is not best}
    return best, {number: difference for number, difference in differences.items() if difference is not None}


def _less(difference: Difference | None) -> str:
    return "" if difference is None else f"{format_difference(difference)}<br><small>{escape(difference.basis)}</small>"


def format_difference(difference: Difference) -> str:
    """Return a difference with its interval. Example: "+12 % (+3 to +21 %)"."""
    value, low, high = (f"{100 * number:+.0f}" for number in (difference.value, difference.low, difference.high))
    return f"{value} % ({low} to {high} %)"


def _bar(rate: float, low: float, high: float) -> str:
    x, left, right = (2 + value * (BAR - 4) for value in (rate, low, high))
    text = f"{percent(low)} to {percent(high)}"
    return (
        f'<svg class="interval" viewBox="0 0 {BAR} 18" role="img" aria-label="{text}"><title>{text}</title>'
        f'<line class="grid-line" x1="2" x2="{BAR - 2}" y1="9" y2="9"/>'
        f'<path d="M{left:.1f} 9H{right:.1f}" stroke="var(--good)" stroke-width="3"/>'
        f'<circle cx="{x:.1f}" cy="9" r="5" fill="var(--good)"/></svg>'
    )


def _curves(groups: Sequence[RunGroup]) -> str:
    cards = [_card("Success in evaluations", Axis(0.0, 1.0, is_percent=True), groups, evaluation_curve)]
    for main_curve in main_curves_of([run for group in groups for run in group.runs]):
        cards.append(_card(main_curve.title, main_curve.axis, groups, partial(curve, main_curve.metric)))
    return f'<div class="grid">{"".join(cards)}</div>'


def _own_numbers(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield the section of own rewards and of the worlds' numbers, if a run has some."""
    names = compared_names([run for group in groups for run in group.runs])
    cards = [_card(name, Axis(), groups, partial(curve, name)) for name in names]
    if cards:
        yield _section("Own rewards, numbers of the world", f'<div class="grid">{"".join(cards)}</div>')


def _card(
    title: str,
    axis: Axis,
    groups: Sequence[RunGroup],
    curve_of: Callable[[RunGroup, int], tuple[Series, Band] | None],
) -> str:
    curves = [drawn for number, group in enumerate(groups) if (drawn := curve_of(group, _colour(number))) is not None]
    if not curves:
        return f'<div class="card missing"><h3>{escape(title)}</h3><p>not logged</p></div>'
    chart = line_chart([series for series, _ in curves], axis, bands=[band for _, band in curves])
    return f'<div class="card"><h3>{escape(title)}</h3>{chart}</div>'


def _differences(groups: Sequence[RunGroup]) -> str:
    keys = list(groups[0].settings) if groups else []
    if not keys:
        return '<div class="card">Nothing but the seed.</div>'
    head = "".join(f"<th>{_dot(number)}</th>" for number in range(len(groups)))
    rows = "".join(
        f"<tr><td><code>{escape(key)}</code></td>"
        + "".join(f"<td>{escape(group.settings[key])}</td>" for group in groups)
        + "</tr>"
        for key in keys
    )
    return _wide_table(f"<tr><th>key</th>{head}</tr>{rows}")


def _runs(groups: Sequence[RunGroup], place: Path) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            planned = run.config.get("num_steps", "?")
            success = _last_success(run.evaluations[-1] if run.evaluations else None)
            rows.append(
                f"<tr><td>{_link(run, place)}</td><td>{escape(group.label)}</td>"
                f"<td class=num>{escape(str(run.config.get(SEED, '?')))}</td>"
                f"<td class=num>{run.num_steps} of {planned}</td><td class=num>{success}</td></tr>"
            )
    head = (
        "<tr><th>run</th><th>setting</th><th class=num>seed</th><th class=num>steps</th>"
        "<th class=num>final success</th></tr>"
    )
    return _wide_table(head + "".join(rows))


def _last_success(last: EvaluationRecord | None) -> str:
    if last is None:
        return "not evaluated"
    return f"{percent(last.success_rate)} ({percent(last.ci_low)} to {percent(last.ci_high)})"


def _link(run: RunRecord, place: Path) -> str:
    name = escape(run.folder.resolve().name)
    if not (run.folder / REPORT).is_file():
        return name
    where = escape(os.path.relpath(run.folder.resolve() / REPORT, place.resolve()), quote=True)
    return f'<a href="{where}">{name}</a>'


def _wide_table(rows: str, remark: str = "") -> str:
    return f'<div class="card"><div class="wide"><table>{rows}</table></div>{remark}</div>'
