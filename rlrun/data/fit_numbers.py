"""Comparison of a data set's numbers with a world: units, signs and starts of the state, actions, and rewards.

Units and signs are judged by the world's first states, and by how it moves when it gets the data set's own actions.
Shape legend: F frames, P numbers of the state, R starts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.fit_actions import judge_actions
from rlrun.data.fit_findings import UNITS, Finding, in_words, label_of, near_unit, span_of, unit_of, warn_of
from rlrun.data.fit_replay import (
    MANY_EPISODES,
    MOST,
    NOTHING,
    SAME_WAY,
    Replay,
    begins,
    is_moving,
    likeness_of,
    size_of,
)
from rlrun.data.fit_report import FITS, CompatibilityReport, Row, World

if TYPE_CHECKING:
    from rlrun.data.lerobot.reader import DatasetInfo
    from rlrun.edges.spaces import PolicySpaces

START_SLACK = 0.5  # in ranges of the data set, by which the world's first states may lie outside of it
RESOLUTION = 1e-3  # relative to the numbers: a smaller difference is no motion
_CLEARLY = 3.0  # deviations, by which two means differ for a reason
_MANY_REWARDS = 50  # frames; the rewards of fewer prove little
_SAME_FACTOR = 2.0  # times, by which two measures of one factor may differ
_REWARD_TOLERANCE = 0.5  # of the logarithm, between a measured factor of rewards and a power of ten
_SAME_SHARE = 0.02  # of the numbers, by which two that are the same may differ


def judge_numbers(
    fit: CompatibilityReport, data: DatasetInfo, world: World, policy: PolicySpaces | None, learns_rewards: bool
) -> None:
    """Add a row for each number of the state and of the actions, and for rewards, and what is wrong with them."""
    replay = Replay.of(data, world.sample)
    if data.state is not None and world.known(world.spaces.num_proprio) == data.num_proprio and len(data.state):
        _judge_state(fit, data, data.state, world, policy, replay)
    if data.actions is not None and len(world.spaces.action_low) == data.num_actions and len(data.actions):
        judge_actions(fit, data, data.actions, world, policy, replay)
    if data.rewards is not None and data.lengths is not None and len(data.rewards):
        _judge_rewards(fit, data.rewards, data.lengths, replay, learns_rewards)


def _judge_state(
    fit: CompatibilityReport,
    data: DatasetInfo,
    state: np.ndarray,
    world: World,
    policy: PolicySpaces | None,
    replay: Replay | None,
) -> None:
    names = data.proprio_names or world.spaces.proprio_names
    first = begins(data.lengths)
    found: list[Finding] = []
    for number in range(data.num_proprio):
        values = state[:, number]
        finding = Finding("")
        theirs = ""
        if replay is not None:
            starts = replay.sample.proprio[:, 0, number]
            theirs = f"starts {span_of(starts)}"
            finding = _start_finding(values, values[first], starts, replay, number)
        taken = "" if policy is None else "taken" if policy.num_proprio else "not taken"
        fit.rows.append(Row(label_of("state", number, names), span_of(values), theirs, taken, finding.verdict))
        found.append(finding)
    warn_of(fit, "state", found, names)


def _start_finding(values: np.ndarray, first: np.ndarray, starts: np.ndarray, replay: Replay, number: int) -> Finding:
    """Compare one number of all frames, of the first ones, and of the world's starts and motions."""
    low = float(values.min())
    high = float(values.max())
    tiny = max(RESOLUTION * max(abs(low), abs(high), float(np.abs(starts).max())), NOTHING)
    slack = START_SLACK * (high - low) + tiny
    outside = (starts < low - slack) | (starts > high + slack)
    is_outside = bool(outside.mean() >= MOST)
    ours, theirs = replay.motions(number)
    other = _other_unit(first, starts, ours, theirs, is_outside)
    if other is not None:
        return other
    if _agree(first, starts, -1.0) and (is_outside or number in replay.reversed_numbers):
        return Finding("the other sign", "the world's first states have the other sign", (-1.0, 0.0))
    are_many = len(first) >= MANY_EPISODES
    if high - low <= tiny and (is_moving(theirs, tiny) or (are_many and np.ptp(starts) > 2 * tiny)):
        return Finding("never moves in the data set", "it never moves in the data set, and does in the world")
    if is_outside:
        told = f"{outside.sum()} of {len(starts)} of the world's first states lie outside of the data set's range"
        gap = max(low - starts.mean(), starts.mean() - high)
        is_proven = are_many or gap > _CLEARLY * starts.std()
        return Finding(told, "the world's first states lie outside of the data set's range" if is_proven else "")
    return _moved(ours, tiny, replay, number)


def _moved(ours: np.ndarray, tiny: float, replay: Replay, number: int) -> Finding:
    """Compare whether and where one number moves."""
    if is_moving(ours, tiny) and not replay.sample.varies[number]:
        return Finding("never moves in the world", "it moves in the data set, and never in the world")
    if number not in replay.reversed_numbers:
        return Finding(FITS)
    if replay.reversed_numbers[number] in replay.reversed_actions:
        return Finding("moves the other way")  # which the action's own finding tells
    return Finding(
        "moves the other way",
        "it moves the other way in the world by the same actions, so that its sign or that of an action differs",
    )


def _other_unit(
    first: np.ndarray, starts: np.ndarray, ours: np.ndarray, theirs: np.ndarray, is_outside: bool
) -> Finding | None:
    """Return the finding on a number that has another unit; None: nothing proves one.

    Proof are the motions, if they are alike but for their size; else the starts, if a usual factor explains them.
    """
    unit = unit_of(size_of(first), size_of(starts))
    if unit is None:
        return None
    are_alike = likeness_of(ours, theirs) > SAME_WAY
    motion = unit_of(size_of(ours), size_of(theirs)) if are_alike else None
    if are_alike and motion is None:
        return None  # motions of one size: the starts differ, and not the unit
    is_moved = motion is not None and 1 / _SAME_FACTOR < unit / motion < _SAME_FACTOR
    is_begun = motion is None and near_unit(unit) in UNITS and (is_outside or _agree(first, starts, unit))
    if not is_moved and not is_begun:
        return None
    measured = [near_unit(factor) for factor in (unit, motion) if factor is not None]
    exact = next((factor for factor in measured if factor in UNITS), measured[0])
    return Finding(*in_words(exact), (1 / exact, 0.0))


def _agree(first: np.ndarray, starts: np.ndarray, factor: float) -> bool:
    """Return whether the first numbers are those of the world times a factor, and clearly not as they are."""
    off = abs(float(first.mean()) - factor * float(starts.mean()))
    spread = float(first.std()) + abs(factor) * float(starts.std()) + _SAME_SHARE * size_of(first)
    plain = abs(float(first.mean()) - float(starts.mean()))
    return off <= spread and plain > _CLEARLY * (float(first.std()) + float(starts.std()))


def _judge_rewards(
    fit: CompatibilityReport, rewards: np.ndarray, lengths: np.ndarray, replay: Replay | None, learns_rewards: bool
) -> None:
    returns = np.add.reduceat(rewards.astype(np.float64), begins(lengths))
    ours = f"{span_of(rewards)}, returns {span_of(returns)}"
    if replay is None:
        fit.rows.append(Row("reward", ours))
        return
    both = np.isfinite(replay.sample.rewards) & np.isfinite(replay.rewards)
    theirs = replay.sample.rewards[both]
    finding = _reward_finding(rewards, replay.rewards[both], theirs)
    fit.rows.append(Row("reward", ours, f"{span_of(theirs)} in the first steps", verdict=finding.verdict))
    if finding.reason and learns_rewards:
        mended = (
            "" if finding.change is None else f"; demos.keys.scale={{reward: {finding.change[0]:.6g}}} converts them"
        )
        fit.warnings.append(f"rewards of the data set {finding.reason}{mended}")


def _reward_finding(rewards: np.ndarray, first: np.ndarray, theirs: np.ndarray) -> Finding:
    """Compare all rewards, those of the first steps, and the world's for the same actions.

    Proof of another unit are rewards that are alike but for their size.
    """
    if len(rewards) < _MANY_REWARDS or not len(theirs):
        return Finding("")
    low = float(rewards.min())
    high = float(rewards.max())
    slack = START_SLACK * (high - low) + RESOLUTION * max(abs(low), abs(high), 1.0)
    outside = (theirs < low - slack) | (theirs > high + slack)
    unit = unit_of(size_of(first), size_of(theirs))
    if unit is not None and likeness_of(first, theirs) > SAME_WAY:
        power = 10.0 ** round(math.log10(unit))
        near = power if abs(math.log(unit / power)) < _REWARD_TOLERANCE else unit
        return Finding(f"{near:.3g} times the world's", f"are about {near:.3g} times the world's", (1 / near, 0.0))
    if outside.mean() >= MOST:
        there = f"the world gives {span_of(theirs)} for the same first actions"
        return Finding("outside of the data set's", f"are {span_of(rewards)}, and {there}")
    return Finding(FITS)
