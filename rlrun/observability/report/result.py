"""Sections of the report on the result of the run, with confidence intervals, and on the placement of its workers."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import Any

from rlrun.observability.records import EvaluationRecord, RunRecord
from rlrun.observability.step_line import duration, memory, percent, quantity

# of the picture of intervals, pixels
WIDTH = 460
ROW = 46
LEFT = 112
RIGHT = 26
CPU = "CPU"


def result_section(record: RunRecord) -> str:
    """Return the success rates before and after with intervals, and the run in numbers, as HTML."""
    evaluations = record.evaluations
    if len(evaluations) >= 2:
        hero = _change(evaluations[0], evaluations[-1])
    elif evaluations:
        hero = _single(evaluations[0])
    else:
        hero = _unevaluated(record)
    tiles = "".join(f'<div class="card tile"><b>{value}</b><span>{name}</span></div>' for name, value in _tiles(record))
    return f'<section class="card hero">{hero}</section><div class="tiles">{tiles}</div>'


def _change(first: EvaluationRecord, last: EvaluationRecord) -> str:
    is_clear = first.ci_high < last.ci_low or last.ci_high < first.ci_low
    sure = (
        "The intervals do not overlap." if is_clear else "The intervals overlap: more episodes would tell them apart."
    )
    words = (
        f"Success on {last.episodes} fixed episodes, before and after {last.step - first.step} training steps. "
        f"Whiskers: 95 % Wilson interval. {sure}"
    )
    rate = _rate(first.success_rate, last.success_rate)
    return f"<div>{rate}<p>{words}</p></div>{_intervals([first, last])}"


def _single(only: EvaluationRecord) -> str:
    words = f"Success on {only.episodes} fixed episodes after training step {only.step}; one evaluation so far."
    rate = f'<div class="rate"><span class="to">{percent(only.success_rate)}</span></div>'
    return f"<div>{rate}<p>{words}</p></div>{_intervals([only])}"


def _unevaluated(record: RunRecord) -> str:
    values = [value for value in record.values("success_rate") if value is not None]
    if not values:
        return (
            "<div><div class='rate'>No result yet</div><p>Neither evaluations nor training steps were logged.</p></div>"
        )
    count = max(1, len(values) // 10)
    before = sum(values[:count]) / count
    after = sum(values[-count:]) / count
    rate = _rate(before, after)
    span = f"the first and last {count} steps" if count > 1 else "the first and the last step"
    return f"<div>{rate}<p>Success while exploring, {span}; no evaluation was recorded.</p></div>"


def _rate(before: float, after: float) -> str:
    kind = "to worse" if after < before else "to"
    rates = f'<span class="from">{percent(before)}</span> → <span class="{kind}">{percent(after)}</span>'
    return f'<div class="rate">{rates}</div>'


def _intervals(evaluations: list[EvaluationRecord]) -> str:
    """Draw the rates as dots with whiskers on a common axis, 0..100 %."""
    height = ROW * len(evaluations) + 24
    span = WIDTH - LEFT - RIGHT
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = LEFT + share * span
        parts.append(f'<line class="grid-line" x1="{x}" x2="{x}" y1="6" y2="{height - 22}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{height - 7}" text-anchor="middle">{percent(share)}</text>')
    for row, evaluation in enumerate(evaluations):
        y = ROW * row + ROW / 2 + 4
        low, x, high = (LEFT + v * span for v in (evaluation.ci_low, evaluation.success_rate, evaluation.ci_high))
        text = f"{evaluation.successes}/{evaluation.episodes}"
        is_last = row == len(evaluations) - 1
        colour = "var(--good)" if is_last else "var(--soft)"
        parts.append(
            f"<g><title>{text}, interval {percent(evaluation.ci_low)} to {percent(evaluation.ci_high)}</title>"
            f'<text x="0" y="{y - 1}" font-size="13" fill="var(--ink)" font-weight="600">step {evaluation.step}</text>'
            f'<text class="tick" x="0" y="{y + 13}">{text} episodes</text>'
            f'<path d="M{low:.1f} {y}H{high:.1f}M{low:.1f} {y - 6}v12M{high:.1f} {y - 6}v12" stroke="{colour}"'
            f' stroke-width="2" fill="none"/><circle cx="{x:.1f}" cy="{y}" r="6.5" fill="{colour}"/></g>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="success intervals">{"".join(parts)}</svg>'


def _tiles(record: RunRecord) -> list[tuple[str, str]]:
    planned = record.config.get("num_steps")
    tiles = [("training steps", f"{record.num_steps} of {planned}" if planned else str(record.num_steps))]
    if record.has("env_steps"):
        tiles.append(("env steps", quantity(max(_logged(record, "env_steps")))))
    if elapsed_s := sum(_logged(record, "step_s")):
        tiles.append(("in training steps", duration(elapsed_s)))
    if record.has("env_steps_per_second"):
        tiles.append(("env steps/s, median", quantity(median(_logged(record, "env_steps_per_second")))))
    if record.evaluations:
        tiles.append(("mean q-score at the end", f"{record.evaluations[-1].mean_q_score:.2f}"))
        tiles.append(("mean return at the end", f"{record.evaluations[-1].mean_return:.4g}"))
    tiles.append(("infra faults", str(sum(map(int, _logged(record, "num_infra_faults"))))))
    if nonfinite := sum(map(int, _logged(record, "num_nonfinite"))):
        tiles.append(("non-finite numbers", str(nonfinite)))
    return tiles


def _logged(record: RunRecord, name: str) -> list[float]:
    """Return the values of a metric, of the steps that have one."""
    return [value for value in record.values(name) if value is not None]


def placement_picture(plan: dict[str, Any]) -> str:
    """Return HTML from plan.json: `slots` (role, rank, node, accelerators, why), `nodes` if known; "" without slots.

    plan.json is `placement.plan.Plan` as JSON. Unused accelerators are marked.
    """
    nodes = {node["node"]["name"]: node for node in plan.get("nodes", [])}
    slots = plan.get("slots", [])
    names = list(dict.fromkeys([*nodes, *(slot["node"] for slot in slots)]))
    boxes = "".join(_node(name, nodes.get(name), [s for s in slots if s["node"] == name]) for name in names)
    return f'<div class="nodes">{boxes}</div>' if slots else ""


def _node(name: str, known: dict[str, Any] | None, slots: list[dict[str, Any]]) -> str:
    models = [gpu["model"] for gpu in known["node"]["accelerators"]] if known else []
    devices: dict[str, list[str]] = {_device(i): [] for i in range(len(models))}
    for slot in slots:
        for device in [_device(i) for i in slot["accelerators"]] or [CPU]:
            devices.setdefault(device, []).append(_chip(slot))
    cells = "".join(_cell(device, chips) for device, chips in devices.items())
    facts = [*dict.fromkeys(models)]
    if known:
        facts += [f"{known['node']['num_cpus']} cores", memory(known["node"]["memory_bytes"])]
    head = f"<h4>{escape(name)}<small>{escape(', '.join(facts))}</small></h4>"
    return f'<section class="node">{head}<div>{cells}</div></section>'


def _cell(device: str, chips: list[str]) -> str:
    content = "".join(chips) or '<span class="free">free</span>'
    return f'<div class="device"><b>{device}</b>{content}</div>'


def _device(index: int) -> str:
    return f"GPU {index}"


def _chip(slot: dict[str, Any]) -> str:
    role = escape(str(slot["role"]), quote=True)
    why = escape(str(slot.get("why", "")), quote=True)
    return f'<span class="chip {role}" title="{why}">{role}/{slot["rank"]}</span>'
