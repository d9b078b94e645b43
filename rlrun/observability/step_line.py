"""Formats for people: the line of a finished step, durations, counts, bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping

SHOWN = {  # metric -> label, in this order
    "success_rate": "success",
    "episode_return": "return",
    "approx_kl": "kl",
    "env_steps_per_second": "env steps/s",
    "step_s": "step",
}
TIMES = {"collect_s": "collect", "update_s": "update", "sync_s": "sync"}  # shares of step_s
BETWEEN = {"evaluate_s": "evaluate", "save_s": "save"}  # between two steps, no part of step_s
_LONG_S = 0.1
RESTARTS = {"num_simulator_restarts": "simulator", "num_worker_restarts": "worker"}
BUSY = "busy_"  # busy_<role>: share of the step, or of the steps of the last second, that the role's workers worked


def named_numbers(numbers: Mapping[str, float]) -> str:
    """Return numbers with their names. Example: "ema 0.51 · distance 0.2"."""
    return " · ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def step_line(step: int, num_steps: int, metrics: Mapping[str, float], logged: Mapping[str, float] = {}) -> str:
    """Return the line of a finished step. logged: numbers of callbacks.

    Example: step 12/100 · success 56 % · return 1.31 · kl 0.01 · 410 env steps/s · 3.1 s · busy env 71 actor 20 %
    """
    parts = [f"step {step:>{len(str(num_steps))}}/{num_steps}"]
    if "success_rate" not in metrics and metrics.get("num_infra_faults", 0):
        parts.append(_shown("success_rate", math.nan))
    parts += [_shown(name, metrics[name]) for name in SHOWN if name in metrics]
    parts[-1] += "".join(
        f" + {label} {duration(metrics[name])}" for name, label in BETWEEN.items() if _is_long(metrics, name)
    )
    parts += [named_numbers(logged)] * bool(logged)
    if faults := int(metrics.get("num_infra_faults", 0)):
        parts.append(f"{faults} infra fault{'s' if faults > 1 else ''}")
    for name, what in RESTARTS.items():
        if count := int(metrics.get(name, 0)):
            parts.append(f"{count} {what}{'s' if count > 1 else ''} restarted")
    if shares := time_shares(metrics):
        word = "busy" if any(name.startswith(BUSY) for name in metrics) else "time"
        parts.append(word + "".join(f" {label} {percent(share)[:-2]}" for label, share in shares.items()) + " %")
    return " · ".join(parts)


def _is_long(metrics: Mapping[str, float], name: str) -> bool:
    return metrics.get(name, 0.0) >= _LONG_S


def time_shares(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the step per role if `busy_<role>` was logged, else per stage."""
    busy = {name.removeprefix(BUSY): value for name, value in metrics.items() if name.startswith(BUSY)}
    if busy:
        return busy
    step_s = metrics.get("step_s", 0.0)
    if not step_s > 0:
        return {}
    return {label: metrics[name] / step_s for name, label in TIMES.items() if name in metrics}


def percent(share: float) -> str:
    """Format a share. Example: percent(0.563) is "56 %"."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "- %"


def duration(seconds: float) -> str:
    """Format seconds. Example: 8.25 -> "8.2 s", 75 -> "1:15", 3700 -> "1:01:40"."""
    if not math.isfinite(seconds):
        return "n/a"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def quantity(number: float) -> str:
    """Format a count. Example: 950 -> "950", 12_345 -> "12.3k", 4_200_000 -> "4.2M"."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.1f}{unit}"
    return f"{number:.0f}" if number == int(number) or abs(number) >= 100 else f"{number:.1f}"


def memory(num_bytes: float) -> str:
    """Format bytes. Example: 182_000_000 -> "174 MiB"."""
    mebibytes = num_bytes / 1024**2
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def _shown(name: str, value: float) -> str:
    if name == "success_rate":
        return f"success {percent(value):>5}"
    if name == "env_steps_per_second":
        return f"{value:.0f} env steps/s"
    if name == "step_s":
        return duration(value)
    return f"{SHOWN[name]} {value:.4f}" if name == "approx_kl" else f"{SHOWN[name]} {value:.2f}"
