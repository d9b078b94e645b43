"""Report of a run as one page: result, curves, placement, timeline, videos, config; it opens without a network."""

from __future__ import annotations

import base64
import time
from collections.abc import Collection, Iterable, Iterator
from html import escape
from pathlib import Path

from rlrun.observability.metrics import CATALOGUE, MetricGroup
from rlrun.observability.records import MAX_FAULTS, RunRecord, read_run
from rlrun.observability.report import curves, own_numbers
from rlrun.observability.report.charts import STYLE
from rlrun.observability.report.result import placement_picture, result_section
from rlrun.observability.run_files import REPORT
from rlrun.observability.step_line import duration, percent
from rlrun.observability.timeline import is_work
from rlrun.observability.trends import theil_sen_slope
from rlrun.system.errors import escape_control

MAX_VIDEOS = 6
# phases with a colour of their own, and the sum of the rest
NUM_PHASES = 8
OTHER = "other work"
MAX_VIDEO_BYTES = 24 * 1024 * 1024  # of all embedded videos


def write_report(folder: Path) -> Path:
    """Write report.html into a run directory. A section without data says so."""
    record = read_run(folder)
    path = record.folder / REPORT
    path.write_text(escape_control(page(record)), encoding="utf-8")
    return path


def page(record: RunRecord) -> str:
    """Return the page as HTML."""
    title = f"{record.name} · rlrun report"
    sections = (
        _header(record),
        result_section(record),
        _ablation(record),
        _videos(record),
        _section("Curves", curves.main_curves(record), "thin: as logged, bold: averaged; hover for values"),
        *_own_numbers(record),
        curves.other_curves(record, own_numbers.shown_names(record)),
        _section("Where time went", _worker_time(record), "share of each worker's time by phase"),
        _section("Memory", _memory(record), "private memory of the largest worker of a role; slope of the second half"),
        _section("Placement", _placement(record), "the workers on each node; hover for the reason"),
        _section("Infra faults", _faults(record), "broken machines and simulators; never counted as task failures"),
        _section("Configuration and versions", _config(record)),
        _damage(record),
        f"<footer>Written by rlrun on {time.strftime('%Y-%m-%d %H:%M:%S')}.</footer>",
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _own_numbers(record: RunRecord) -> Iterator[str]:
    """Yield a section on an own reward, and one on the world's info, where there are such numbers."""
    if terms := own_numbers.reward_section(record):
        yield _section("Reward", terms, "terms of env.reward, mean over the episodes of a step")
    if numbers := own_numbers.info_section(record):
        yield _section("Numbers of the world", numbers, "its info: mean over an episode's control steps")


def missing_card(what: str) -> str:
    """Return a card that says which data is missing."""
    return f'<div class="card missing">{escape(what)}</div>'


def _section(title: str, content: str, remark: str = "") -> str:
    return f"<h2>{escape(title)}<small>{escape(remark)}</small></h2>{content}"


def _header(record: RunRecord) -> str:
    where = escape(str(record.folder))
    title = f'<span class="brand">rlrun</span><h1>{escape(record.name)}</h1>'
    return f'<header>{title}<span class="where">{where}</span></header>'


def _ablation(record: RunRecord) -> str:
    """Show the ablation's result if this run imitated; for a cached policy it was shown when the policy was made."""
    if record.ablation is None:
        return ""
    return _section(
        "What the policy looks at", f'<div class="card"><p>After imitation, {escape(record.ablation)}.</p></div>'
    )


def _videos(record: RunRecord) -> str:
    if not record.videos:
        return _section(
            "Videos", missing_card("No video: none was recorded (logging.video_every_steps, logging.video_episodes).")
        )
    chosen, left_out = _choose_videos(record.videos)
    figures = "".join(_figure(path) for path in chosen)
    names = ", ".join(path.name for path in left_out)
    rest = f"<p><small>Not embedded, in the folder videos: {escape(names)}</small></p>" if left_out else ""
    return _section("Videos", f'<div class="videos">{figures}</div>{rest}')


def _choose_videos(videos: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return the videos to embed (the last, the first and some between, as many as fit), and the others."""
    count = min(MAX_VIDEOS, len(videos))
    spread = [videos[round(i * (len(videos) - 1) / max(1, count - 1))] for i in range(count)]
    chosen: list[Path] = []
    room = MAX_VIDEO_BYTES
    for path in dict.fromkeys([spread[-1], spread[0], *spread]):  # the last is the most important, then the first
        if path.stat().st_size <= room:
            chosen.append(path)
            room -= path.stat().st_size
    return [path for path in videos if path in chosen], [path for path in videos if path not in chosen]


def _figure(path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    name, _, step = path.stem.rpartition("-step-")
    caption = f"{name or path.stem}, after step {int(step)}" if name and step.isdigit() else path.stem
    video = f'<video controls muted loop autoplay playsinline src="data:video/mp4;base64,{content}"></video>'
    return f'<figure class="card">{video}<figcaption>{escape(caption)}</figcaption></figure>'


def _worker_time(record: RunRecord) -> str:
    if not record.worker_seconds:
        return missing_card("No timeline: timeline.json is missing or empty.")
    by_worker = _longest_phases(record.worker_seconds)
    phases = dict.fromkeys(p for seconds in by_worker.values() for p in seconds if is_work(p) and p != OTHER)
    colours = {phase: f"var(--c{number})" for number, phase in enumerate(phases, 1)}
    if any(OTHER in seconds for seconds in by_worker.values()):
        colours[OTHER] = "var(--soft)"
    rows = "".join(_worker_bar(name, seconds, colours) for name, seconds in by_worker.items())
    keys = [*colours.items(), ("waiting or idle", "var(--wait)")]
    legend = "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in keys)
    return f'<div class="card"><div class="bars">{rows}</div><div class="legend">{legend}</div></div>'


def _longest_phases(by_worker: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the seconds with all but NUM_PHASES phases of work summed to OTHER; the chosen have the largest shares."""
    shares: dict[str, float] = {}
    for seconds in by_worker.values():
        total_s = sum(seconds.values()) or 1.0
        for phase, value in seconds.items():
            if is_work(phase):
                shares[phase] = max(shares.get(phase, 0.0), value / total_s)
    chosen = set(sorted(shares, key=lambda phase: -shares[phase])[:NUM_PHASES])
    merged: dict[str, dict[str, float]] = {}
    for worker, seconds in by_worker.items():
        merged[worker] = {phase: value for phase, value in seconds.items() if phase in chosen or not is_work(phase)}
        if rest := sum(value for phase, value in seconds.items() if is_work(phase) and phase not in chosen):
            merged[worker][OTHER] = rest
    return merged


def _worker_bar(worker: str, seconds: dict[str, float], colours: dict[str, str]) -> str:
    total_s = sum(seconds.values()) or 1.0
    parts = []
    for phase, value in sorted(seconds.items(), key=lambda item: (not is_work(item[0]), -item[1])):
        text = escape(f"{worker} {phase}: {duration(value)}, {percent(value / total_s)}", quote=True)
        style = f"width:{100 * value / total_s:.2f}%;background:{colours.get(phase, 'var(--wait)')}"
        parts.append(f'<i style="{style}" title="{text}"></i>')
    busy_s = sum(value for phase, value in seconds.items() if is_work(phase))
    total = f"busy {duration(busy_s)} of {duration(total_s)}"
    return (
        f'<span class="name">{escape(worker)}</span><div class="bar">{"".join(parts)}</div>'
        f'<span class="total">{total}</span>'
    )


def _memory(record: RunRecord) -> str:
    """Return a table of the memory metrics: their last values, and how fast they grow."""
    rows = []
    for name in (metric.name for metric in CATALOGUE if metric.group is MetricGroup.memory):
        second_half = record.metrics[len(record.metrics) // 2 :]
        known = [line for line in second_half if line.get(name) is not None]
        if known:
            per_step = theil_sen_slope([(line["step"], line[name]) for line in known])
            per_hour = 3600 * theil_sen_slope([(line.get("elapsed_s") or 0.0, line[name]) for line in known])
            label = name.removeprefix("memory_")
            rows.append((label, f"{known[-1][name]:.0f} MB", f"{per_step:+.3g} MB", f"{per_hour:+.3g} MB"))
    if not rows:
        return missing_card("No memory was logged.")
    head = "".join(f"<th class=num>{name}</th>" for name in ("of", "at the end", "a step", "an hour"))
    return f'<div class="card"><table class="narrow"><tr>{head}</tr>{_rows(rows)}</table></div>'


def _placement(record: RunRecord) -> str:
    if record.plan is None:
        return missing_card("No placement: plan.json is missing.")
    try:
        picture = placement_picture(record.plan)
    except (KeyError, TypeError) as error:
        return missing_card(f"plan.json is of an unknown form: {error!r}.")
    return f'<div class="card">{picture}</div>' if picture else missing_card("plan.json names no slots.")


def _faults(record: RunRecord) -> str:
    logged = sum(int(value or 0) for value in record.values("num_infra_faults"))
    count = max(logged, record.num_faulty_episodes)
    if not record.metrics and not count and not record.losses:
        return missing_card("Unknown: no training step was logged.")
    if not count and not record.losses:
        return '<div class="card">None.</div>'
    lead = f"{count} episode{' was' if count == 1 else 's were'} void; the logs of the env workers have the causes."
    episodes = _fault_table(record.faulty_episodes, ("step", "env", "seed", "num_control_steps"))
    losses = _fault_table(record.losses, ("step", "worker", "what"))
    lost = (
        f"<p>{len(record.losses)} worker{'s' if len(record.losses) > 1 else ''} replaced.</p>{losses}" if losses else ""
    )
    return f'<div class="card"><p class="lead">{lead}</p>{episodes}{lost}</div>'


def _fault_table(records: Collection[dict], keys: tuple[str, ...]) -> str:
    """Return a table of the last records, with a column per key; "" without records."""
    if not records:
        return ""
    rows = _rows((record.get(key, "") for key in keys) for record in list(records)[-MAX_FAULTS:])
    head = "".join(f"<th class=num>{escape(key.removeprefix('num_').replace('_', ' '))}</th>" for key in keys)
    return f'<table class="narrow"><tr>{head}</tr>{rows}</table>'


def _rows(records: Iterable[Iterable[object]]) -> str:
    return "".join(
        f"<tr>{''.join(f'<td class=num>{escape(str(cell))}</td>' for cell in record)}</tr>" for record in records
    )


def _config(record: RunRecord) -> str:
    if record.config_diff is None:
        diff = missing_card("config_diff.yaml is missing.")
    else:
        text = record.config_diff.strip()
        all_defaults = text in ("", "{}")
        shown = "every key has its default" if all_defaults else escape(text)
        diff = f'<div class="card"><p class="lead"><b>Differs from the defaults</b></p><pre>{shown}</pre></div>'
    return f'<div class="two">{diff}{_versions(record)}</div>'


def _versions(record: RunRecord) -> str:
    if record.provenance is None:
        return missing_card("Versions unknown: provenance.json is missing.")
    facts: dict[str, object] = {}
    for key, value in record.provenance.items():
        facts.update(value if isinstance(value, dict) else {key.replace("is_", ""): value})
    rows = "".join(
        f"<tr><td>{escape(str(key))}</td><td><code>{escape(_text(value))}</code></td></tr>"
        for key, value in facts.items()
    )
    return f'<div class="card"><p class="lead"><b>Versions</b></p><table>{rows}</table></div>'


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)


def _damage(record: RunRecord) -> str:
    if not record.damaged:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in record.damaged)
    return _section("Damaged files", f'<div class="card"><ul>{items}</ul></div>')
