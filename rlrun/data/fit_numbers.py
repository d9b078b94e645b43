"""Comparison of a data set's numbers with a world: limits, units, signs and starts of state and actions, and rewards.

Limits alone prove little, since an expert may use a small part of them. Units and signs are judged by the world's first
states, and by how it moves when it gets the data set's own actions. Shape legend: F frames, P numbers of the state, A
actions, R starts, K control steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.fit_report import FITS, CompatibilityReport, Row, World, listed, mismatch
from rlrun.edges.world_sample import WorldSample

if TYPE_CHECKING:
    from rlrun.data.lerobot.reader import DatasetInfo
    from rlrun.edges.spaces import PolicySpaces, Spaces

NUM_STEPS = 8  # control steps with the actions of an episode, of which each start is followed
MIN_STARTS = 4  # of the world
MAX_STARTS = 8
MAX_SILENT_OUTSIDE = 0.01  # a larger share of a dimension's actions beyond its limits gives a warning
MAX_ALLOWED_OUTSIDE = 0.5  # a larger share is refused: the numbers have another unit
MAX_DISTANCE = 10.0  # in ranges of the dimension; actions farther beyond the limits are refused
LIMIT_SLACK = 0.01  # in ranges of the dimension: recorded actions may exceed their limits by rounding
EDGE = 0.02  # in ranges of the dimension: so near, a value is that of a limit or of the middle
SMALL_SHARE = 0.05  # of its limits; actions that use less may have another unit
START_SLACK = 0.5  # in ranges of the data set, by which the world's first states may lie outside of it
NOTHING = 1e-6  # numbers of this size are zero
RESOLUTION = 1e-3  # relative to the numbers: a smaller difference is no motion
OTHER_UNIT = 5.0  # times as large or small
SAME_WAY = 0.8  # correlation of two motions, above which they are one, and below its negative the reverse
MIN_MOTIONS = 12  # pairs of steps that are compared
_UNITS = {180 / math.pi: "degrees for radians", 1e3: "thousandths for wholes", 100.0: "hundredths for wholes"}
_UNITS |= {1 / factor: " for ".join(reversed(words.split(" for "))) for factor, words in _UNITS.items()}
_REWARD_TOLERANCE = 0.5  # of the logarithm, between a measured factor of rewards and a power of ten
_UNIT_TOLERANCE = 0.1  # relative, between a factor that was measured and one of _UNITS


@dataclass(frozen=True)
class Finding:
    """What looks wrong about one number. Findings of one kind share a line."""

    verdict: str  # in the row of the table
    reason: str = ""  # the sentence of the line; "": worth a verdict, but no warning
    change: tuple[float, float] | None = None  # factor and offset that mend it; None: none is known


def judge_numbers(
    fit: CompatibilityReport, data: DatasetInfo, world: World, policy: PolicySpaces | None, learns_rewards: bool
) -> None:
    """Add a row for each number of the state and of the actions, and for rewards, and what is wrong with them."""
    replay = Replay.of(data, world.sample)
    if data.state is not None and world.known(world.spaces.num_proprio) == data.num_proprio and len(data.state):
        _judge_state(fit, data, data.state, world, policy, replay)
    if data.actions is not None and len(world.spaces.action_low) == data.num_actions and len(data.actions):
        _judge_actions(fit, data, data.actions, world, policy, replay)
    if data.rewards is not None and data.lengths is not None and len(data.rewards):
        _judge_rewards(fit, data.rewards, data.lengths, replay, learns_rewards)


@dataclass(frozen=True, eq=False)
class Replay:
    """The begins of R episodes of the data set, and what the world answered to their actions."""

    sample: WorldSample
    state: np.ndarray  # float32 [R, K+1, P], of the data set; NaN after the end of an episode
    rewards: np.ndarray  # float32 [R, K]; NaN after the end

    @classmethod
    def of(cls, data: DatasetInfo, sample: WorldSample | None) -> Replay | None:
        """Return the same frames of both; None: the world was not started."""
        if sample is None or data.state is None or data.lengths is None:
            return None
        num_rows, num_steps = sample.rewards.shape
        frames, is_there = first_frames(data.lengths, num_rows, num_steps + 1)
        state = np.where(is_there[..., None], data.state[frames], np.nan)
        rewards = np.full((num_rows, num_steps), np.nan)
        if data.rewards is not None:
            rewards = np.where(is_there[:, :-1], data.rewards[frames[:, :-1]], np.nan)
        return cls(sample, state, rewards)

    def motions(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps of one number of the state in the data set and in the world, where both have them."""
        ours = np.diff(self.state[..., number], axis=1)
        theirs = np.diff(self.sample.proprio[..., number], axis=1)
        both = np.isfinite(ours) & np.isfinite(theirs)
        return ours[both], theirs[both]


def replayed_actions(data: DatasetInfo, spaces: Spaces, num_rows: int) -> np.ndarray | None:
    """Return the first actions of R episodes, float32 [R, K, A], to be made in the world; None: it takes others.

    After the end of an episode its last action repeats.
    """
    if data.actions is None or data.lengths is None or data.num_actions != spaces.num_actions:
        return None
    frames, _ = first_frames(data.lengths, num_rows, NUM_STEPS)
    return data.actions[frames]


def first_frames(lengths: np.ndarray, num_rows: int, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first frames of R episodes, int [R, K], evenly distributed, and whether the episode has them."""
    ends = np.cumsum(lengths)
    chosen = np.linspace(0, len(lengths) - 1, num_rows).round().astype(int)
    frames = (ends - lengths)[chosen][:, None] + np.arange(num_steps)
    is_there = frames < ends[chosen][:, None]
    return np.minimum(frames, ends[chosen][:, None] - 1), is_there


# --- state ------------------------------------------------------------------------------------


def _judge_state(
    fit: CompatibilityReport,
    data: DatasetInfo,
    state: np.ndarray,
    world: World,
    policy: PolicySpaces | None,
    replay: Replay | None,
) -> None:
    names = data.proprio_names or world.spaces.proprio_names
    begins = _begins(data.lengths)
    found: list[Finding] = []
    for number in range(data.num_proprio):
        values = state[:, number]
        finding = Finding("")
        theirs = ""
        if replay is not None:
            starts = replay.sample.proprio[:, 0, number]
            theirs = f"starts {_span(starts)}"
            finding = _start_finding(values, values[begins], starts, replay, number)
        taken = "" if policy is None else "taken" if policy.num_proprio else "not taken"
        fit.rows.append(Row(_label("state", number, names), _span(values), theirs, taken, finding.verdict))
        found.append(finding)
    _warn(fit, "state", found, names)


def _start_finding(values: np.ndarray, first: np.ndarray, starts: np.ndarray, replay: Replay, number: int) -> Finding:
    """Compare one number of all frames, of the first ones, and of the world's starts and motions."""
    low = float(values.min())
    high = float(values.max())
    size = max(abs(low), abs(high), float(np.abs(starts).max()))
    tiny = max(RESOLUTION * size, NOTHING)
    ours, theirs = replay.motions(number)
    slack = START_SLACK * (high - low) + tiny
    outside = (starts < low - slack) | (starts > high + slack)
    told = f"{outside.sum()} of {len(starts)} of the world's first states lie outside of the data set's range"
    unit = _unit(_size(first), _size(starts))
    motion = _unit(_size(ours), _size(theirs)) if _alike(ours, theirs) > SAME_WAY else None
    is_outside = bool(outside.mean() >= MAX_ALLOWED_OUTSIDE)
    if unit is not None and motion is not None and 0.5 < unit / motion < 2:
        return Finding(*_of_unit(unit), (_near_unit(1 / unit), 0.0))
    is_usual = unit is not None and motion is None and _near_unit(unit) in _UNITS
    if unit is not None and is_usual and (is_outside or _agree(first, starts, unit)):
        return Finding(*_of_unit(unit), (_near_unit(1 / unit), 0.0))
    if is_outside and _agree(first, starts, -1.0):
        return Finding("the other sign", "the world's first states have the other sign", (-1.0, 0.0))
    if high - low <= tiny and (np.ptp(starts) > 2 * tiny or _moves(theirs, tiny)):
        return Finding("never moves in the data set", "it never moves in the data set, and does in the world")
    if is_outside:
        return Finding(told, "the world's first states lie outside of the data set's range")
    if _moves(ours, tiny) and not replay.sample.varies[number]:
        return Finding("never moves in the world", "it moves in the data set, and never in the world")
    if _alike(ours, theirs) < -SAME_WAY:
        return Finding(
            "moves the other way",
            "it moves the other way in the world by the same actions, so that its sign or that of an action differs",
        )
    return Finding(FITS)


def _begins(lengths: np.ndarray | None) -> np.ndarray:
    return np.zeros(1, int) if lengths is None else np.cumsum(lengths) - lengths


def _size(values: np.ndarray) -> float:
    """Return the root of the mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if len(values) else 0.0


def _moves(steps: np.ndarray, tiny: float) -> bool:
    """Return whether most steps are motions."""
    return len(steps) > 0 and float((np.abs(steps) > tiny).mean()) >= MAX_ALLOWED_OUTSIDE


def _alike(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the correlation, without taking off the means, of two motions; 0 if there are too few."""
    norms = _size(ours) * _size(theirs)
    return float(np.mean(ours * theirs, dtype=np.float64)) / norms if len(ours) >= MIN_MOTIONS and norms > 0 else 0.0


def _agree(first: np.ndarray, starts: np.ndarray, factor: float) -> bool:
    """Return whether the first numbers are those of the world times a factor, and clearly not as they are."""
    off = abs(float(first.mean()) - factor * float(starts.mean()))
    spread = float(first.std()) + abs(factor) * float(starts.std()) + EDGE * _size(first)
    plain = abs(float(first.mean()) - float(starts.mean()))
    return off <= spread and plain > 3 * (float(first.std()) + float(starts.std()))


def _unit(ours: float, theirs: float) -> float | None:
    """Return how many times as large the data set's numbers are; None: they have about one size, or are zero."""
    if min(ours, theirs) <= NOTHING:
        return None
    factor = ours / theirs
    return factor if factor >= OTHER_UNIT or factor <= 1 / OTHER_UNIT else None


def _near_unit(factor: float) -> float:
    """Return the usual factor that is about as large, else the factor itself."""
    near = min(_UNITS, key=lambda usual: abs(math.log(usual / factor)))
    return near if abs(near / factor - 1) <= _UNIT_TOLERANCE else factor


def _of_unit(unit: float) -> tuple[str, str]:
    """Return the verdict and the sentence on numbers that are `unit` times as large as the world's."""
    near = _near_unit(unit)
    words = f" ({_UNITS[near]})" if near in _UNITS else ""
    return (
        f"{near:.3g} times the world's{words}",
        f"the data set's numbers are about {near:.3g} times the world's{words}",
    )


# --- actions ----------------------------------------------------------------------------------


def _judge_actions(
    fit: CompatibilityReport,
    data: DatasetInfo,
    actions: np.ndarray,
    world: World,
    policy: PolicySpaces | None,
    replay: Replay | None,
) -> None:
    names = data.action_names or world.spaces.action_names
    low, high = (np.array(limit, np.float64) for limit in (world.spaces.action_low, world.spaces.action_high))
    bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
    span = np.where(bounded, high - low, 1.0)
    findings = [
        _action_finding(actions[:, at], low[at], high[at], world.spaces.num_choices)
        if bounded[at]
        else Finding("no limits")
        for at in range(len(low))
    ]
    share = np.ptp(actions, 0) / span
    moving = share > RESOLUTION
    is_small = bounded & moving & (share < SMALL_SHARE)
    other = _of_all_actions(replay, bool(moving.any() and is_small[moving].all()))
    if other is not None:
        findings = [other if moves else finding for finding, moves in zip(findings, moving, strict=True)]
    for at, finding in enumerate(findings):
        limits = f"{low[at]:.4g} to {high[at]:.4g}" if bounded[at] else "no limits"
        taken = "" if policy is None else "taken"
        row = Row(_label("action", at, names), _span(actions[:, at]), limits, taken, finding.verdict)
        fit.rows.append(row)
    _judge_limits(fit, actions, low, high, np.where(bounded, span, np.inf), names)
    _warn(fit, "action", findings, names)


def _action_finding(values: np.ndarray, low: float, high: float, num_choices: int | None) -> Finding:
    """Judge the values of one action by its limits."""
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
    half = _half(values, low, high)
    if half is not None:
        return half
    middle = (low + high) / 2
    near = EDGE * span
    share = (most - least) / span
    if share < SMALL_SHARE:
        return Finding(f"uses {_percent(share)} of its limits")
    if least >= middle - near or most <= middle + near:
        return Finding(f"{FITS}, in the {'upper' if least >= middle - near else 'lower'} half")
    return Finding(FITS)


def _half(values: np.ndarray, low: float, high: float) -> Finding | None:
    """Return the finding on values that go from the middle of the limits to one of them; None: they do not."""
    least = float(values.min())
    most = float(values.max())
    near = EDGE * (high - low)
    middle = (low + high) / 2
    are_two = bool(((values <= least + near) | (values >= most - near)).all())
    for which, begin, end in (("upper", middle, high), ("lower", low, middle)):
        if abs(least - begin) <= near and abs(most - end) <= near:
            shown = f"{begin:.3g} {'and' if are_two else 'to'} {end:.3g}"
            reason = (
                f"the data set has only {shown}, as a gripper of another range, and the world {low:.3g} to {high:.3g}"
            )
            return Finding(f"only {shown}, the {which} half", reason, (2.0, low - 2 * begin))
    return None


def _of_all_actions(replay: Replay | None, are_small: bool) -> Finding | None:
    """Return what is wrong with the unit of all actions that move; None: nothing.

    are_small: each uses a small part of its limits.
    """
    unit = _unit_of_actions(replay)
    if unit is not None:
        factor = _near_unit(unit)
        reason = f"the world moves {1 / factor:.3g} times as far by it as the data set, so that its unit differs"
        return Finding("another unit", reason, (factor, 0.0))
    if not are_small or (replay is not None and _moves_alike(replay)):
        return None
    reason = f"it uses less than {_percent(SMALL_SHARE)} of its limits, as numbers of another unit do"
    return Finding(f"uses less than {_percent(SMALL_SHARE)} of its limits", reason)


def _unit_of_actions(replay: Replay | None) -> float | None:
    """Return by what factor actions must be multiplied to move the world's state as in the data set; None: by none.

    Numbers of the state that do not begin at zero must have the world's unit by their starts.
    """
    if replay is None:
        return None
    factors = []
    for number in range(replay.state.shape[2]):
        ours, theirs = replay.motions(number)
        sizes = _size(replay.state[:, 0, number]), _size(replay.sample.proprio[:, 0, number])
        if min(sizes) > NOTHING and _unit(*sizes) is None and _alike(ours, theirs) > SAME_WAY:
            factors.append(_size(ours) / _size(theirs))
    factor = float(np.median(factors)) if factors else 1.0
    return factor if factor >= OTHER_UNIT or factor <= 1 / OTHER_UNIT else None


def _moves_alike(replay: Replay) -> bool:
    """Return whether most numbers of the state that the data set moves are moved alike by the world."""
    likeness = []
    for number in range(replay.state.shape[2]):
        ours, theirs = replay.motions(number)
        if _size(ours) > 0:
            likeness.append(_alike(ours, theirs) > SAME_WAY)
    return bool(likeness) and float(np.mean(likeness)) >= MAX_ALLOWED_OUTSIDE


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
    sentence = f"{_percent(share[at])} of the data set's {name} lie outside of {low[at]:g} to {high[at]:g}"
    sentence += f", up to {actions[:, at][np.argmax(beyond[:, at])]:g}"
    if (share > MAX_ALLOWED_OUTSIDE).any() or (worst > MAX_DISTANCE).any():
        remedy = "Convert the actions to the simulator's unit, or take the world that they were recorded in."
        wrong = np.flatnonzero(share > MAX_SILENT_OUTSIDE)
        factor = _fitting_factor(actions[:, wrong], low[wrong], high[wrong]) if len(wrong) else None
        if factor is not None:
            which = f"{{{', '.join(f'action/{number}: {factor:.6g}' for number in wrong)}}}"
            remedy = f"They fit as {_UNITS[factor]} would: set demos.keys.scale={which}. Or take another world."
        fit.refusals.append(mismatch("actions", sentence, "demos.keys.scale", remedy))
    elif (share > MAX_SILENT_OUTSIDE).any():
        fit.warnings.append(f"{sentence}: the simulator will clip what the policy learns of them")


def _fitting_factor(actions: np.ndarray, low: np.ndarray, high: np.ndarray) -> float | None:
    """Return the usual factor by which the actions lie within the limits and use more than a small part; None: none."""
    slack = LIMIT_SLACK * (high - low)
    for factor in _UNITS:
        scaled = actions * factor
        is_inside = ((scaled >= low - slack) & (scaled <= high + slack)).mean() > 1 - MAX_SILENT_OUTSIDE
        if is_inside and (np.ptp(scaled, 0) / (high - low) > SMALL_SHARE).any():
            return factor
    return None


# --- rewards ----------------------------------------------------------------------------------


def _judge_rewards(
    fit: CompatibilityReport, rewards: np.ndarray, lengths: np.ndarray, replay: Replay | None, learns_rewards: bool
) -> None:
    returns = np.add.reduceat(rewards.astype(np.float64), _begins(lengths))
    ours = f"{_span(rewards)}, returns {_span(returns)}"
    if replay is None:
        fit.rows.append(Row("reward", ours))
        return
    theirs = replay.sample.rewards[np.isfinite(replay.sample.rewards)]
    finding = _reward_finding(rewards, replay.rewards[np.isfinite(replay.rewards)], theirs)
    fit.rows.append(Row("reward", ours, f"{_span(theirs)} in the first steps", verdict=finding.verdict))
    if finding.reason and learns_rewards:
        mended = (
            "" if finding.change is None else f"; demos.keys.scale={{reward: {finding.change[0]:.6g}}} converts them"
        )
        fit.warnings.append(f"rewards of the data set {finding.reason}{mended}")


def _reward_finding(rewards: np.ndarray, first: np.ndarray, theirs: np.ndarray) -> Finding:
    """Compare all rewards, those of the first steps, and the world's for the same actions."""
    if not len(theirs):
        return Finding("")
    low = float(rewards.min())
    high = float(rewards.max())
    slack = START_SLACK * (high - low) + RESOLUTION * max(abs(low), abs(high), 1.0)
    outside = (theirs < low - slack) | (theirs > high + slack)
    unit = _unit(_size(first), _size(theirs))
    if unit is not None:
        power = 10.0 ** round(math.log10(unit))
        near = power if abs(math.log(unit / power)) < _REWARD_TOLERANCE else unit
        return Finding(f"{near:.3g} times the world's", f"are about {near:.3g} times the world's", (1 / near, 0.0))
    if outside.mean() >= MAX_ALLOWED_OUTSIDE:
        there = f"the world gives {_span(theirs)} for the same first actions"
        return Finding("outside of the data set's", f"are {_span(rewards)}, and {there}")
    return Finding(FITS)


# --- words ------------------------------------------------------------------------------------


def _warn(fit: CompatibilityReport, what: str, findings: Sequence[Finding], names: Sequence[str]) -> None:
    """Add one line for each reason, with the numbers that it holds for and the key that mends it."""
    reasons: dict[tuple[str, tuple[float, float] | None], list[int]] = {}
    for number, finding in enumerate(findings):
        if finding.reason:
            reasons.setdefault((finding.reason, finding.change), []).append(number)
    for (reason, change), numbers in reasons.items():
        which = listed([_label(what, number, names) for number in numbers])
        fit.warnings.append(f"{which}: {reason}; {_mended(what, numbers, change)}")


def _mended(what: str, numbers: Sequence[int], change: tuple[float, float] | None) -> str:
    """Return the key that mends numbers, as it is written."""
    if change is None:
        return f"demos.keys.{what} names the feature that is taken, demos.keys.scale and offset convert numbers"
    factor, offset = change
    scaled = ", ".join(f"{what}/{number}: {factor:.6g}" for number in numbers)
    moved = ", ".join(f"{what}/{number}: {offset:.6g}" for number in numbers)
    shift = f" 'demos.keys.offset={{{moved}}}'" if offset else ""
    return f"'demos.keys.scale={{{scaled}}}'{shift} converts them"


def _label(what: str, number: int, names: Sequence[str]) -> str:
    """Example: "action 7 (gripper_right/0)"."""
    return f"{what} {number}" + (f" ({names[number]})" if number < len(names) else "")


def _span(values: np.ndarray) -> str:
    """Example: "-1 to 0.5"."""
    known = values[np.isfinite(values)]
    if not len(known):
        return "unknown"
    low = f"{float(known.min()):.4g}"
    high = f"{float(known.max()):.4g}"
    return low if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
