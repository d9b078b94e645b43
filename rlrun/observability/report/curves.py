"""Curves of the report, drawn from metrics.jsonl and evaluations.jsonl."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

from rlrun.observability.metrics import training_tag
from rlrun.observability.records import RunRecord
from rlrun.observability.report.charts import Axis, Mark, Series, format_value, line_chart, stacked_chart
from rlrun.observability.step_line import BUSY, TIMES, percent

_COMMON_METRICS = {
    "success_rate",
    "episode_return",
    "env_steps_per_second",
}  # of MAIN; an algorithm logs its own beside
_NO_CURVES = {"step", "time_s", "num_nonfinite", "policy_version", "elapsed_s"}  # known without a picture
STAGE_COLOURS = {"collect": 2, "update": 4, "sync": 3}
ROLE_COLOURS = {"env": 2, "rollout": 1, "actor": 4, "driver": 8}  # as the placement's chips


@dataclass(frozen=True)
class Curve:
    """One chart of one metric. Example: Curve("approx_kl", "Approximate KL", Axis(low=0))."""

    metric: str
    title: str
    axis: Axis
    colour: int = 1


MAIN = (
    Curve("success_rate", "Success", Axis(0.0, 1.0, is_percent=True), 1),
    Curve("episode_return", "Episode return", Axis(), 2),
    Curve("approx_kl", "Approximate KL", Axis(low=0.0), 3),
    Curve("clip_fraction", "Clip fraction", Axis(low=0.0, is_percent=True), 3),
    Curve("entropy", "Entropy", Axis(unit="nat"), 4),
    Curve("explained_variance", "Explained variance", Axis(high=1.0), 4),
    Curve("critic_loss", "Loss of the critics", Axis(low=0.0), 3),
    Curve("action_entropy", "Entropy of an action's number", Axis(unit="nat"), 4),
    Curve("noise_entropy", "Entropy of the first noise", Axis(unit="nat"), 4),
    Curve("env_steps_per_second", "Throughput", Axis(low=0.0, unit="env steps/s"), 7),
)


def main_curves_of(records: Sequence[RunRecord]) -> list[Curve]:
    """Return the most important curves: those of every run, and those that any of these runs logged."""

    def is_logged(metric: str) -> bool:
        return any(record.has(metric) for record in records)

    return [curve for curve in MAIN if curve.metric in _COMMON_METRICS or is_logged(curve.metric)]


def main_curves(record: RunRecord) -> str:
    """Return the most important curves as HTML; one that every run should have is named if it is missing."""
    cards = [_card(record, curve) for curve in main_curves_of([record])]
    cards.append(_plain_card("Time per step", stacked_chart(_stages(record)), "no stage times were logged"))
    if roles := _roles(record):
        cards.append(_plain_card("Busy workers", line_chart(roles, Axis(0.0, 1.0, is_percent=True)), ""))
    return f'<div class="grid">{"".join(cards)}</div>'


def other_curves(record: RunRecord, elsewhere: Collection[str] = ()) -> str:
    """Return the curves of all other metrics, folded and by group; those that are always 0 are only named.

    elsewhere: metrics that another section shows.
    """
    shown = {curve.metric for curve in MAIN} | _NO_CURVES | set(elsewhere)
    names_left = dict.fromkeys(name for line in record.metrics for name in line if name not in shown)
    names = sorted((name for name in names_left if not name.startswith(BUSY)), key=training_tag)
    flat = [name for name in names if not any(record.values(name))]
    cards = [_card(record, Curve(name, training_tag(name), Axis())) for name in names if name not in flat]
    if not cards and not flat:
        return ""
    zeros = f"<p>Always 0: {escape(', '.join(map(training_tag, flat)))}.</p>" if flat else ""
    return (
        f'<details><summary>{len(cards)} more curves</summary><div class="grid">{"".join(cards)}</div>{zeros}</details>'
    )


def _card(record: RunRecord, curve: Curve) -> str:
    steps = [line["step"] for line in record.metrics]
    values = record.values(curve.metric)
    marks = _evaluations(record) if curve.metric == "success_rate" else []
    chart = line_chart([Series(curve.metric, steps, values, curve.colour)], curve.axis, marks)
    last = next((value for value in reversed(values) if value is not None), None)
    if marks:
        chart += '<div class="legend">line: while exploring; circles: evaluations on fixed seeds, 95 % interval</div>'
    return _plain_card(
        curve.title, chart, f"{curve.metric} was not logged", "" if last is None else format_value(last, curve.axis)
    )


def _plain_card(title: str, chart: str, otherwise: str, last: str = "") -> str:
    kind, content = ("card", chart) if chart else ("card missing", f"<p>{escape(otherwise)}</p>")
    return f'<div class="{kind}"><h3>{escape(title)}<small>{escape(last)}</small></h3>{content}</div>'


def _evaluations(record: RunRecord) -> list[Mark]:
    return [
        Mark(
            e.step,
            e.success_rate,
            e.ci_low,
            e.ci_high,
            f"evaluation after step {e.step}: {e.successes}/{e.episodes}, "
            f"interval {percent(e.ci_low)} to {percent(e.ci_high)}",
        )
        for e in record.evaluations
    ]


def _stages(record: RunRecord) -> list[Series]:
    """Return the share of each step by stage; the rest is the driver's own time."""
    lines = [line for line in record.metrics if line.get("step_s")]
    steps = [line["step"] for line in lines]
    return [
        Series(label, steps, [(line.get(metric) or 0.0) / line["step_s"] for line in lines], STAGE_COLOURS[label])
        for metric, label in TIMES.items()
        if record.has(metric)
    ]


def _roles(record: RunRecord) -> list[Series]:
    names = dict.fromkeys(name for line in record.metrics for name in line if name.startswith(BUSY))
    steps = [line["step"] for line in record.metrics]
    roles = [name.removeprefix(BUSY) for name in names]
    return [Series(role, steps, record.values(BUSY + role), ROLE_COLOURS.get(role, 5)) for role in roles]
