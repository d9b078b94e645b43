"""Charts as inline SVG: axes with round ticks, gaps where values are missing, values on hover, no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from rlrun.observability.live.step_line import quantity

WIDTH, HEIGHT = 420, 190
LEFT, RIGHT, TOP, BOTTOM = 54, 17, 12, 26  # margins of the plot area; half of the last label is to the right of it
MAX_POINTS = 240  # more are averaged in buckets
SMOOTH_SHARE = 0.05  # of the points are averaged for the bold line


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
    values = [v for line in series for v in line.values if v is not None] + [e for m in marks for e in (m.low, m.high)]
    values += [value for band in bands for value in (*band.low, *band.high)]
    steps = [step for line in series for step in line.steps] + [mark.step for mark in marks]
    if not values:
        return ""
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
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
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
    commands, is_down = [], False
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
    x, y, low, high = scale.x(mark.step), scale.y(mark.value), scale.y(mark.low), scale.y(mark.high)
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
    for step, found in by_step.items():
        x = scale.x(step)
        text = "\n".join(f"{line.name}: {format_value(value, scale.axis)}" for line, value in found)
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
    steps, values = [], []
    for start in range(0, len(line.steps), size):
        found = [value for value in line.values[start : start + size] if value is not None]
        steps.append(line.steps[min(start + size, len(line.steps)) - 1])
        values.append(sum(found) / len(found) if found else None)
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
