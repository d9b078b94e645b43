"""Comparison of a data set's actions with a world: limits, units and signs.

Limits alone prove little, since an expert may use a small part of them; the world's answers to the data set's own
actions prove more. Shape legend: F frames, A actions, P numbers of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.fit_findings import UNITS, Finding, label_of, near_unit, percent, span_of, unit_of, warn_of
from rlrun.data.fit_replay import MANY_EPISODES, MOST, NOTHING, SAME_WAY, Replay, likeness_of, size_of
from rlrun.data.fit_report import FITS, CompatibilityReport, Row, World, mismatch

if TYPE_CHECKING:
    from rlrun.data.lerobot.reader import DatasetInfo
    from rlrun.edges.spaces import PolicySpaces

MAX_SILENT_OUTSIDE = 0.01  # a larger share of a dimension's actions beyond its limits gives a warning
MAX_ALLOWED_OUTSIDE = 0.5  # a larger share is refused: the numbers have another unit
MAX_DISTANCE = 10.0  # in ranges of the dimension; actions farther beyond the limits are refused
LIMIT_SLACK = 0.01  # in ranges of the dimension: recorded actions may exceed their limits by rounding
EDGE = 0.02  # in ranges of the dimension: so near, a value is that of a limit or of the middle
SMALL_SHARE = 0.05  # of its limits; actions that use less may have another unit
RESOLUTION = 1e-3  # in ranges of the dimension: a smaller difference is no motion
_REVERSED = Finding(
    "the other sign", "it moves the world the other way than the data set, whose sign or state differs", (-1.0, 0.0)
)


def judge_actions(
    fit: CompatibilityReport,
    data: DatasetInfo,
    actions: np.ndarray,
    world: World,
    policy: PolicySpaces | None,
    replay: Replay | None,
) -> None:
    """Add a row for each number of the actions, float32 [F, A], and what is wrong with them."""
    names = data.action_names or world.spaces.action_names
    low, high = (np.array(limit, np.float64) for limit in (world.spaces.action_low, world.spaces.action_high))
    span = np.where(np.isfinite(low) & np.isfinite(high) & (high > low), high - low, np.inf)
    are_few = data.lengths is not None and len(data.lengths) < MANY_EPISODES
    findings = [
        _action_finding(actions[:, at], low[at], high[at], world.spaces.num_choices, are_few)
        if np.isfinite(span[at])
        else Finding("no limits")
        for at in range(len(low))
    ]
    findings = _with_answers(findings, np.ptp(actions, 0) / span, actions, replay)
    for at, finding in enumerate(findings):
        limits = f"{low[at]:.4g} to {high[at]:.4g}" if np.isfinite(span[at]) else "no limits"
        taken = "" if policy is None else "taken"
        fit.rows.append(Row(label_of("action", at, names), span_of(actions[:, at]), limits, taken, finding.verdict))
    _judge_limits(fit, actions, low, high, span, names)
    warn_of(fit, "action", findings, names)


def _with_answers(
    findings: list[Finding], share: np.ndarray, actions: np.ndarray, replay: Replay | None
) -> list[Finding]:
    """Return the findings after the world's answers to the actions. share: of the limits, which each action uses."""
    moving = np.ptp(actions, 0) > NOTHING
    is_small = (share > 0) & (share < SMALL_SHARE)
    other = _of_all_actions(replay, bool(moving.any() and is_small[moving].all()))
    if other is not None:
        findings = [other if moves else finding for finding, moves in zip(findings, moving, strict=True)]
    if replay is None:
        return findings
    findings = [_REVERSED if at in replay.reversed_actions else finding for at, finding in enumerate(findings)]
    return [
        Finding(f"{FITS}, in one half") if finding.is_doubtful and replay.has_recorded_effect(at) else finding
        for at, finding in enumerate(findings)
    ]


def _action_finding(values: np.ndarray, low: float, high: float, num_choices: int | None, are_few: bool) -> Finding:
    """Judge the values of one action by its limits. are_few: they are those of few episodes, which prove little."""
    span = high - low
    least = float(values.min())
    most = float(values.max())
    if (np.maximum(low - values, values - high) / span > LIMIT_SLACK).mean() > MAX_SILENT_OUTSIDE:
        return Finding("outside of the limits")  # which `_judge_limits` tells
    if most - least <= RESOLUTION * span:
        return Finding("never moves in the data set")
    if num_choices is not None:
        used = len(np.unique(values.round()))
        return Finding(FITS if used >= num_choices else f"uses {used} of {num_choices} choices")
    half = _half(values, low, high, are_few)
    if half is not None:
        return half
    middle = (low + high) / 2
    near = EDGE * span
    share = (most - least) / span
    if share < SMALL_SHARE:
        return Finding(f"uses {percent(share)} of its limits")
    if least >= middle - near or most <= middle + near:
        return Finding(f"{FITS}, in the {'upper' if least >= middle - near else 'lower'} half")
    return Finding(FITS)


def _half(values: np.ndarray, low: float, high: float, are_few: bool) -> Finding | None:
    """Return the finding on values that go from the middle of the limits to one of them; None: they do not.

    are_few: only those of a gripper, which are two, are believed.
    """
    least = float(values.min())
    most = float(values.max())
    near = EDGE * (high - low)
    middle = (low + high) / 2
    are_two = bool(((values <= least + near) | (values >= most - near)).all())
    if are_few and not are_two:
        return None
    for which, begin, end in (("upper", middle, high), ("lower", low, middle)):
        if abs(least - begin) <= near and abs(most - end) <= near:
            shown = f"{begin:.3g} {'and' if are_two else 'to'} {end:.3g}"
            reason = (
                f"the data set has only {shown}, as a gripper of another range, and the world {low:.3g} to {high:.3g}"
            )
            return Finding(f"only {shown}, the {which} half", reason, (2.0, low - 2 * begin), is_doubtful=True)
    return None


def _of_all_actions(replay: Replay | None, are_small: bool) -> Finding | None:
    """Return what is wrong with the unit of all actions that move; None: nothing.

    are_small: each uses a small part of its limits.
    """
    unit = _unit_of_actions(replay)
    if unit is not None:
        factor = near_unit(unit)
        reason = f"the world moves {1 / factor:.3g} times as far by it as the data set, so that its unit differs"
        return Finding("another unit", reason, (factor, 0.0))
    if not are_small or (replay is not None and _moves_alike(replay)):
        return None
    reason = f"it uses less than {percent(SMALL_SHARE)} of its limits, as numbers of another unit do"
    return Finding(f"uses less than {percent(SMALL_SHARE)} of its limits", reason)


def _unit_of_actions(replay: Replay | None) -> float | None:
    """Return by what factor actions must be multiplied to move the world's state as in the data set; None: by none.

    Numbers of the state that do not begin at zero must have the world's unit by their starts.
    """
    if replay is None:
        return None
    factors = []
    for number in range(replay.state.shape[2]):
        ours, theirs = replay.motions(number)
        sizes = size_of(replay.state[:, 0, number]), size_of(replay.sample.proprio[:, 0, number])
        if min(sizes) > NOTHING and unit_of(*sizes) is None and likeness_of(ours, theirs) > SAME_WAY:
            factors.append(size_of(ours) / size_of(theirs))
    return unit_of(float(np.median(factors)), 1.0) if factors else None


def _moves_alike(replay: Replay) -> bool:
    """Return whether most numbers of the state that the data set moves are moved alike by the world."""
    likeness = []
    for number in range(replay.state.shape[2]):
        ours, theirs = replay.motions(number)
        if size_of(ours) > 0:
            likeness.append(likeness_of(ours, theirs) > SAME_WAY)
    return bool(likeness) and float(np.mean(likeness)) >= MOST


def _judge_limits(
    fit: CompatibilityReport,
    actions: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    span: np.ndarray,
    names: Sequence[str],
) -> None:
    """Refuse actions that lie far outside of the limits, and warn of some that lie outside."""
    is_bounded = np.isfinite(span)
    beyond = np.zeros(actions.shape)  # in ranges of the dimension
    beyond[:, is_bounded] = (np.maximum(low - actions, actions - high)[:, is_bounded]) / span[is_bounded]
    share = (beyond > LIMIT_SLACK).mean(0)
    worst = beyond.max(0)
    at = int(np.argmax(np.maximum(share, worst / MAX_DISTANCE)))
    name = names[at] if names else f"action {at}"
    sentence = f"{percent(share[at])} of the data set's {name} lie outside of {low[at]:g} to {high[at]:g}"
    sentence += f", up to {actions[:, at][np.argmax(beyond[:, at])]:g}"
    if (share > MAX_ALLOWED_OUTSIDE).any() or (worst > MAX_DISTANCE).any():
        remedy = "Convert the actions to the simulator's unit, or take the world that they were recorded in."
        wrong = np.flatnonzero(share > MAX_SILENT_OUTSIDE)
        factor = _fitting_factor(actions[:, wrong], low[wrong], high[wrong]) if len(wrong) else None
        if factor is not None:
            which = f"{{{', '.join(f'action/{number}: {factor:.6g}' for number in wrong)}}}"
            remedy = f"They fit as {UNITS[factor]} would: set demos.keys.scale={which}. Or take another world."
        fit.refusals.append(mismatch("actions", sentence, "demos.keys.scale", remedy))
    elif (share > MAX_SILENT_OUTSIDE).any():
        fit.warnings.append(f"{sentence}: the simulator will clip what the policy learns of them")


def _fitting_factor(actions: np.ndarray, low: np.ndarray, high: np.ndarray) -> float | None:
    """Return the usual factor by which the actions lie within the limits and use more than a small part; None: none."""
    slack = LIMIT_SLACK * (high - low)
    for factor in UNITS:
        scaled = actions * factor
        is_inside = ((scaled >= low - slack) & (scaled <= high + slack)).mean() > 1 - MAX_SILENT_OUTSIDE
        if is_inside and (np.ptp(scaled, 0) / (high - low) > SMALL_SHARE).any():
            return factor
    return None
