"""Charts of the report as inline SVG, and its style sheet.

Axes have round ticks, missing values are gaps, hovering shows values; no script is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from rlrun.observability.step_line import quantity

WIDTH = 420
HEIGHT = 190
# margins of the plot area; half of the last label is to the right of it
LEFT = 54
RIGHT = 17
TOP = 12
BOTTOM = 26
MAX_POINTS = 240  # more are averaged in buckets
SMOOTH_SHARE = 0.05  # of the points are averaged for the bold line
STYLE = """
:root { color-scheme: light dark;
  --bg: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #5a6675; --line: #dfe4ea; --shade: #eef1f5;
  --c1: #2563c9; --c2: #0d8a7c; --c3: #d07a06; --c4: #7a45c6; --c5: #cc3558; --c6: #4d7c0f; --c7: #0e7aa8;
  --c8: #8a6d4b; --wait: #c9d0d9; --good: #12805c; --bad: #b93a2b; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #0f141b; --card: #171e27; --ink: #e6ebf2; --soft: #96a3b3; --line: #2a3442; --shade: #1f2833;
  --c1: #6ea3f5; --c2: #3cc3b2; --c3: #f0a83c; --c4: #b592f0; --c5: #f2748f; --c6: #a3cf4f; --c7: #57bce6;
  --c8: #c8a882; --wait: #3a4655; --good: #42c796; --bad: #f08373; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 64px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; margin-bottom: 18px; }
header h1 { font-size: 24px; margin: 0; letter-spacing: -.01em; }
header .brand { font-weight: 700; color: var(--c1); letter-spacing: .02em; }
header .where { color: var(--soft); font-size: 13px; margin-left: auto; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 12px; letter-spacing: -.005em; }
h2 small { font-weight: 400; color: var(--soft); font-size: 13px; margin-left: 8px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; }
.hero { display: grid; grid-template-columns: minmax(300px, 1.15fr) 1fr; gap: 28px; align-items: center; }
.hero .rate { font-size: 50px; font-weight: 700; letter-spacing: -.03em; line-height: 1.1; white-space: nowrap; }
.hero .rate .from { color: var(--soft); font-weight: 500; }
.hero .rate .to { color: var(--good); } .hero .rate .to.worse { color: var(--bad); }
.hero p { margin: 6px 0 0; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; margin-top: 12px; }
.tile { padding: 11px 14px; } .tile b { display: block; font-size: 20px; letter-spacing: -.01em; }
.tile span { color: var(--soft); font-size: 12.5px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); gap: 14px; }
.grid .card { padding: 12px 12px 8px; }
.grid h3 { font-size: 14px; margin: 0 4px 4px; font-weight: 600; overflow-wrap: anywhere; }
.grid h3 small { float: right; font-weight: 500; color: var(--soft); font-size: 12.5px; }
.grid .card p { margin: 0 4px 6px; } .missing { color: var(--soft); border-style: dashed; }
svg { display: block; width: 100%; height: auto; }
.grid-line, .chart .grid { stroke: var(--line); } .chart .axis { stroke: var(--soft); }
.tick { fill: var(--soft); font-size: 13px; } .chart path { fill: none; }
.chart .raw { stroke-width: 1; opacity: .35; }
.chart .line { stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; } .area { opacity: .85; }
.band { opacity: .16; } .wide { overflow-x: auto; } .soft { color: var(--soft); font-size: 13px; margin: 8px 0 0; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; }
svg.interval { width: 160px; height: 18px; } .wide th, .wide td { white-space: nowrap; padding-right: 18px; }
a { color: var(--c1); }
.mark path { stroke: var(--ink); stroke-width: 1.4; }
.mark circle { fill: var(--card); stroke: var(--ink); stroke-width: 2; }
.hover rect { fill: transparent; } .hover line { stroke: var(--soft); stroke-dasharray: 2 2; opacity: 0; }
.hover:hover line { opacity: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; padding: 4px; color: var(--soft); font-size: 12.5px; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
.nodes { display: flex; flex-wrap: wrap; gap: 14px; }
.node { border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; flex: 1 1 300px; background: var(--bg); }
.node h4 { margin: 0 0 8px; font-size: 14px; } .node h4 small { color: var(--soft); font-weight: 400; float: right; }
.node > div { display: flex; flex-wrap: wrap; gap: 8px; }
.device { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 6px 8px;
  min-width: 92px; }
.device .free { color: var(--soft); font-size: 12px; }
.device b { display: block; font-size: 11.5px; color: var(--soft); font-weight: 600; }
.chip { display: inline-block; margin: 3px 4px 0 0; padding: 1px 8px; border-radius: 20px; font-size: 12px; color: #fff;
  background: var(--c8); } @media (prefers-color-scheme: dark) { .chip { color: #10161d; } }
.chip.env { background: var(--c2); } .chip.rollout { background: var(--c1); } .chip.actor { background: var(--c4); }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 6px 12px; align-items: center; }
.bars .name { font-weight: 600; font-size: 13.5px; } .bars .total { color: var(--soft); font-size: 13px; }
.bar { display: flex; height: 20px; border-radius: 5px; overflow: hidden; background: var(--shade); }
.bar i { display: block; height: 100%; min-width: 1px; }
.videos { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 14px; }
figure { margin: 0; } video { width: 100%; border-radius: 8px; background: #000; display: block; }
figcaption { font-size: 13px; color: var(--soft); padding-top: 6px; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 14px; align-items: start; }
pre { margin: 0; font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; overflow-x: auto; }
table.narrow { width: auto; } table.narrow td, table.narrow th { padding-right: 34px; } .lead { margin: 0 0 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; color: var(--soft); font-weight: 500; } th, td { padding: 4px 10px 4px 0; vertical-align: top; }
tr + tr td { border-top: 1px solid var(--line); }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--soft); margin-bottom: 10px; }
footer { margin-top: 40px; color: var(--soft); font-size: 12.5px; }
@media (max-width: 760px) { .hero { grid-template-columns: 1fr; } .hero .rate { font-size: 38px; } }
td code { overflow-wrap: anywhere; }
@media print { body { background: #fff; } .card { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .two { grid-template-columns: 1fr; } video { display: none; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  details::details-content { content-visibility: visible; height: auto; } }
"""


@dataclass(frozen=True)
class Series:
    """One line. Example: Series("success", steps, values, colour=1); None in `values` is a gap."""

    name: str
    steps: Sequence[float]
    values: Sequence[float | None]
    colour: int = 1  # --c1 .. --c8 of the page's style


@dataclass(frozen=True)
class Band:
    """An area between two lines, drawn below them. steps: of both."""

    steps: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: int = 1


@dataclass(frozen=True)
class Mark:
    """A measured point with its interval, drawn over the lines."""

    step: float
    value: float
    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Axis:
    """The range and unit of an axis. low, high: None takes the bound from the data."""

    low: float | None = None
    high: float | None = None
    is_percent: bool = False
    unit: str = ""


@dataclass
class _Scale:
    """Maps values to pixels of the plot area."""

    steps: tuple[float, float]
    values: tuple[float, float]
    axis: Axis = field(default_factory=Axis)

    def x(self, step: float) -> float:
        low, high = self.steps
        return LEFT + (step - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.values
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def line_chart(series: Sequence[Series], axis: Axis, marks: Sequence[Mark] = (), bands: Sequence[Band] = ()) -> str:
    """Draw lines over training steps, thin as logged and bold averaged; "" without values."""
    series = [_bucketed(line) for line in series]
    values = _all_values(series, marks, bands)
    if not values:
        return ""
    steps = [step for line in series for step in line.steps] + [mark.step for mark in marks]
    scale = _Scale(_wide((min(steps), max(steps))), _value_range(values, axis), axis)
    parts = [_grid(scale), *(_band(scale, band) for band in bands)]
    for line in series:
        smooth = _smoothed(line.values)
        is_noisy = smooth != list(line.values)
        if is_noisy:
            parts.append(_path(scale, line.steps, line.values, line.colour, "raw"))
        parts.append(_path(scale, line.steps, smooth, line.colour, "line"))
    parts += [_mark(scale, mark) for mark in marks]
    parts += [_hover(scale, series)]
    return _svg(parts, series)


def _all_values(series: Sequence[Series], marks: Sequence[Mark], bands: Sequence[Band]) -> list[float]:
    """Return every number that a chart shows, which decide its range."""
    values = [value for line in series for value in line.values if value is not None]
    values += [end for mark in marks for end in (mark.low, mark.high)]
    return values + [value for band in bands for value in (*band.low, *band.high)]


def stacked_chart(series: Sequence[Series]) -> str:
    """Draw the shares (0..1) of several series on top of each other, over training steps."""
    series = [_bucketed(line) for line in series]
    smooth = [_smoothed(line.values) for line in series]
    steps = series[0].steps if series else []
    if len(steps) < 2:
        return ""
    axis = Axis(0.0, 1.0, is_percent=True)
    scale = _Scale(_wide((min(steps), max(steps))), (0.0, 1.0), axis)
    parts = [_grid(scale)]
    floor = [0.0] * len(steps)
    for line, values in zip(series, smooth, strict=True):
        top = [min(1.0, low + (value or 0.0)) for low, value in zip(floor, values, strict=True)]
        forth = " ".join(f"{scale.x(s):.1f},{scale.y(v):.1f}" for s, v in zip(steps, top, strict=True))
        back = " ".join(f"{scale.x(s):.1f},{scale.y(v):.1f}" for s, v in reversed(list(zip(steps, floor, strict=True))))
        parts.append(f'<polygon class="area" style="fill:var(--c{line.colour})" points="{forth} {back}"/>')
        floor = top
    parts.append(_hover(scale, series))
    return _svg(parts, series)


def legend(series: Sequence[Series]) -> str:
    """Return the names with their colours; "" for a single line."""
    if len(series) < 2:
        return ""
    items = "".join(f'<span><i style="background:var(--c{s.colour})"></i>{escape(s.name)}</span>' for s in series)
    return f'<div class="legend">{items}</div>'


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers between low and high. Example: ticks(0, 1) is [0, 0.25, 0.5, 0.75, 1]."""
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def format_value(value: float, axis: Axis) -> str:
    """Format a value with its unit. Example: format_value(0.5, Axis(is_percent=True)) is "50 %"."""
    if axis.is_percent:
        return f"{100 * value:.3g} %"
    if value and abs(value) < 1e-3:
        text = f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")
    elif abs(value) >= 1e4:
        text = quantity(value)
    else:
        text = f"{value:.4g}"
    return f"{text} {axis.unit}".rstrip()


def _svg(parts: list[str], series: Sequence[Series]) -> str:
    name = escape(", ".join(line.name for line in series))
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{"".join(parts)}</svg>'
        + legend(series)
    )


def _grid(scale: _Scale) -> str:
    parts = []
    right = WIDTH - RIGHT
    bottom = HEIGHT - BOTTOM
    for value in ticks(*scale.values):
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = format_value(value, Axis(is_percent=scale.axis.is_percent))
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>')
    for step in ticks(*scale.steps, count=5):
        if step == int(step):
            x = scale.x(step)
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{step:.0f}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    return "".join(parts)


def _path(scale: _Scale, steps: Sequence[float], values: Sequence[float | None], colour: int, kind: str) -> str:
    commands = []
    is_down = False
    for step, value in zip(steps, values, strict=True):
        if value is not None:
            commands.append(f"{'L' if is_down else 'M'}{scale.x(step):.1f} {scale.y(value):.1f}")
        is_down = value is not None
    if len(commands) == 1:  # a lone point is a dot
        commands.append("h0.01")
    return f'<path class="{kind}" style="stroke:var(--c{colour})" d="{"".join(commands)}"/>'


def _band(scale: _Scale, band: Band) -> str:
    if all(low == high for low, high in zip(band.low, band.high, strict=True)):
        return ""  # a single run
    forth = [f"{scale.x(step):.1f},{scale.y(value):.1f}" for step, value in zip(band.steps, band.high, strict=True)]
    back = [f"{scale.x(step):.1f},{scale.y(value):.1f}" for step, value in zip(band.steps, band.low, strict=True)]
    return f'<polygon class="band" style="fill:var(--c{band.colour})" points="{" ".join(forth + back[::-1])}"/>'


def _mark(scale: _Scale, mark: Mark) -> str:
    x = scale.x(mark.step)
    y = scale.y(mark.value)
    low = scale.y(mark.low)
    high = scale.y(mark.high)
    return (
        f'<g class="mark"><title>{escape(mark.label)}</title>'
        f'<path d="M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/></g>'
    )


def _hover(scale: _Scale, series: Sequence[Series]) -> str:
    """Return an invisible column per step that shows its values; it is drawn last, on top of the lines."""
    by_step: dict[float, list[tuple[Series, float]]] = {}
    for line in series:
        for step, value in zip(line.steps, line.values, strict=True):
            if value is not None:
                by_step.setdefault(step, []).append((line, value))
    width = (WIDTH - LEFT - RIGHT) / max(1, len(by_step))
    columns = []
    for step, shown in by_step.items():
        x = scale.x(step)
        text = "\n".join(f"{line.name}: {format_value(value, scale.axis)}" for line, value in shown)
        columns.append(
            f'<g class="hover"><title>step {step:.0f}\n{escape(text)}</title>'
            f'<rect x="{x - width / 2:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></g>'
        )
    return "".join(columns)


def _bucketed(line: Series) -> Series:
    """Return at most MAX_POINTS points, each the mean of its bucket."""
    size = -(-len(line.steps) // MAX_POINTS)
    if size <= 1:
        return line
    steps = []
    values = []
    for start in range(0, len(line.steps), size):
        known = [value for value in line.values[start : start + size] if value is not None]
        steps.append(line.steps[min(start + size, len(line.steps)) - 1])
        values.append(sum(known) / len(known) if known else None)
    return Series(line.name, steps, values, line.colour)


def _smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Return the centred moving average; gaps stay gaps."""
    reach = round(len(values) * SMOOTH_SHARE / 2 + 0.2)
    smooth: list[float | None] = []
    for i, value in enumerate(values):
        near = [v for v in values[max(0, i - reach) : i + reach + 1] if v is not None]
        smooth.append(sum(near) / len(near) if value is not None else None)
    return smooth


def _value_range(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    low, high = _wide((low, high))
    margin = 0.06 * (high - low)
    return (low - margin if axis.low is None else low, high + margin if axis.high is None else high)


def _wide(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return bounds that are not equal."""
    low, high = bounds
    if high > low:
        return bounds
    half = abs(low) * 0.5 or 0.5
    return low - half, high + half
