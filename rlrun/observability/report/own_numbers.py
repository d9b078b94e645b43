"""The terms of an own reward and the numbers of a world's info, in the report."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from rlrun.config.own_reward import SIMULATOR
from rlrun.edges.episode_numbers import MEAN, TERM
from rlrun.observability.records import RunRecord
from rlrun.observability.report.charts import Axis, Series, format_value, line_chart
from rlrun.observability.run_files import EPISODES, read_json_lines

MAX_EPISODES = 20_000  # the last ones, in the table
MAX_CURVES = 12  # of the world's numbers; further ones are among the other curves
_NUM_COLOURS = 8
_MIN_COMPARED = 10  # episodes of each kind, before a term is doubted
_DOUBT = 3.0  # standard errors
_COLUMNS = ("term", "weight", "an episode at first", "at the end", "in successes", "in failures", "with the simulator")
_REMARK = (
    "Terms are weighted, and summed over an episode; their sum is the return. With the simulator: correlation with the "
    "sum of the rewards that the simulator itself gave, from -1 to 1. A term that should reward progress and is lower "
    "in successes, or a penalty above 0, has the wrong sign."
)


def shown_names(record: RunRecord) -> set[str]:
    """Return the metrics that have a place in these sections."""
    names = _names(record, TERM)
    return {*names, *_names(record, MEAN)[:MAX_CURVES]}


def compared_names(records: Sequence[RunRecord]) -> list[str]:
    """Return the metrics of terms, and of the world's numbers, that at least one of several runs has."""
    terms = dict.fromkeys(name for record in records for name in _names(record, TERM))
    numbers = dict.fromkeys(name for record in records for name in _names(record, MEAN))
    return [*terms, *list(numbers)[:MAX_CURVES]]


def reward_section(record: RunRecord) -> str:
    """Return the picture and the table of the terms; "" without an own reward."""
    names = _names(record, TERM)
    if not names:
        return ""
    series = [_series(record, name, TERM, at) for at, name in enumerate(names)]
    picture = line_chart(series, Axis())
    episodes = deque(read_json_lines(record.folder / EPISODES, holding=f'"{TERM}'), MAX_EPISODES)
    sound = [episode for episode in episodes if not episode.get("infra_fault")]
    rows = "".join(_row(record, name, sound) for name in names)
    head = "".join(f"<th class=num>{escape(name)}</th>" for name in _COLUMNS)
    table = f'<div class="wide"><table class="narrow"><tr>{head}</tr>{rows}</table></div>'
    remark = f'<p class="soft">{_REMARK}</p>'
    return f'<div class="grid"><div class="card">{picture}</div></div><div class="card">{table}{remark}</div>'


def info_section(record: RunRecord) -> str:
    """Return a curve of each number of the world's info; "" without any."""
    cards = []
    for name in _names(record, MEAN)[:MAX_CURVES]:
        line = _series(record, name, MEAN, 1)
        last = format_value(next(value for value in reversed(line.values) if value is not None), Axis())
        title = f"<h3>{escape(line.name)}<small>{escape(last)}</small></h3>"
        cards.append(f'<div class="card">{title}{line_chart([line], Axis())}</div>')
    return f'<div class="grid">{"".join(cards)}</div>' if cards else ""


def _names(record: RunRecord, prefix: str) -> list[str]:
    found = dict.fromkeys(name for line in record.metrics for name in line if name.startswith(prefix))
    return [name for name in found if record.has(name)]


def _series(record: RunRecord, name: str, prefix: str, at: int) -> Series:
    """Return the steps that have a value: others had no episode."""
    known = [line for line in record.metrics if line.get(name) is not None]
    steps = [line["step"] for line in known]
    return Series(name.removeprefix(prefix), steps, [line[name] for line in known], at % _NUM_COLOURS + 1)


def _row(record: RunRecord, name: str, episodes: Sequence[Mapping[str, Any]]) -> str:
    """Return a row of the table."""
    values = [line[name] for line in record.metrics if line.get(name) is not None]
    few = max(1, len(values) // 10)
    known = [episode for episode in episodes if episode.get(name) is not None]
    good = np.array([episode[name] for episode in known if episode.get("success")])
    bad = np.array([episode[name] for episode in known if not episode.get("success")])
    term = name.removeprefix(TERM)
    cells = [
        *(term, _weight(record, term), _mean(values[:few]), _mean(values[-few:]), _mean(good), _mean(bad)),
        _correlation(known, name),
    ]
    is_doubted = term != SIMULATOR and _is_lower(good, bad)
    cells[4] += " (lower)" if is_doubted else ""
    return "<tr>" + "".join(f"<td class=num>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _weight(record: RunRecord, term: str) -> str:
    reward = (record.config.get("env") or {}).get("reward")
    entry = reward.get(term) if isinstance(reward, dict) else None
    weight = entry.get("weight", 1.0) if isinstance(entry, dict) else 1.0
    return "no part" if term == SIMULATOR else f"{weight:g}"


def _mean(values: Sequence[float] | np.ndarray) -> str:
    return format_value(float(np.mean(values)), Axis()) if len(values) else "-"


def _is_lower(good: np.ndarray, bad: np.ndarray) -> bool:
    """Return whether a term is lower in successful episodes, beyond chance."""
    if min(good.size, bad.size) < _MIN_COMPARED:
        return False
    error = float(np.sqrt(good.var(ddof=1) / good.size + bad.var(ddof=1) / bad.size))
    return bool(bad.mean() - good.mean() > _DOUBT * max(error, 1e-12))


def _correlation(episodes: Sequence[Mapping[str, Any]], name: str) -> str:
    pairs = np.array([(one[name], one[TERM + SIMULATOR]) for one in episodes if TERM + SIMULATOR in one])
    if len(pairs) < _MIN_COMPARED or not pairs.std(axis=0).all():
        return "-"
    return f"{np.corrcoef(pairs.T)[0, 1]:+.2f}"
