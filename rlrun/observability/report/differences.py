"""Differences of success rates with intervals: by pairs of equal reset seeds, over training seeds, or without pairs.

Pairs: Newcombe's square-and-add interval for paired proportions (Statistics in Medicine 17, 1998, p. 2635, method 10)
and the exact McNemar test. Without pairs: his interval for independent proportions (p. 873, method 10). Both build on
Wilson's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, sqrt
from statistics import NormalDist, mean, stdev
from typing import Any

from rlrun.observability.records import EvaluationRecord, RunRecord, wilson_interval
from rlrun.observability.report.charts import Band, Series

# Student's 0.975 quantile for 1, 2, … degrees of freedom
_T_975: tuple[float, ...] = (
    12.7062,
    4.3027,
    3.1824,
    2.7764,
    2.5706,
    2.4469,
    2.3646,
    2.3060,
    2.2622,
    2.2281,
    2.2010,
    2.1788,
    2.1604,
)
_T_975 += (2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860)


SEED = "seed"
# keys that say where a run is, not what it is
NOT_COMPARED = ("name", "output_dir", "cache_dir", "python_path", "checkpoint.resume", "cluster.address")


@dataclass(frozen=True)
class Difference:
    """Success rate of B less that of A, with its 95 % interval.

    Example: Difference(0.125, 0.03, 0.21, basis="64 pairs of equal seeds: …; McNemar p = 0.077")
    """

    value: float  # -1..1
    low: float
    high: float
    basis: str  # what it was computed from

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def compare_success(
    a: Sequence[EvaluationRecord], b: Sequence[EvaluationRecord], seeds: Sequence[Sequence[int]]
) -> Difference:
    """Return the difference of B's success from A's; each is an evaluation per training seed, with episodes.

    seeds: the training seeds of A and of B. One run each: pairs of equal reset seeds. Several: Student's interval over
    the training seeds, which are paired if they are the same, but never narrower than that of the episodes.
    """
    if len(a) == len(b) == 1:
        return _compare_evaluations(a[0], b[0])
    episodes = _unpaired(*_count_episodes(a), *_count_episodes(b))
    if min(len(a), len(b)) < 2:
        return Difference(*episodes, f"all episodes of {len(a)} and {len(b)} runs; one run shows no spread of seeds")
    rates = [[evaluation.success_rate for evaluation in records] for records in (a, b)]
    is_paired = len(set(seeds[0])) == len(a) and sorted(seeds[0]) == sorted(seeds[1])
    over_seeds = _paired_seeds(rates[0], rates[1], *seeds) if is_paired else _welch(rates[0], rates[1])
    value, low, high = over_seeds
    basis = f"{len(a)} equal training seeds" if is_paired else f"{len(a)} and {len(b)} training seeds"
    return Difference(value, min(low, episodes[1]), max(high, episodes[2]), basis)


def paired_interval(both: int, only_a: int, only_b: int, neither: int) -> tuple[float, float, float]:
    """Return the difference B - A of paired proportions, and the bounds of its 95 % interval.

    The arguments count pairs. Example: (1, 1, 7, 12) gives 0.286 with 0.026 to 0.507.
    """
    count = both + only_a + only_b + neither
    in_a = both + only_a
    in_b = both + only_b
    rate_a = in_a / count
    rate_b = in_b / count
    (low_a, high_a) = wilson_interval(in_a, count)
    (low_b, high_b) = wilson_interval(in_b, count)
    product = in_a * (count - in_a) * in_b * (count - in_b)
    covariance: float = both * neither - only_a * only_b
    if covariance > 0:
        covariance = max(covariance - count / 2, 0)  # the continuity correction of method 10
    phi = covariance / sqrt(product) if product else 0.0
    value = rate_b - rate_a
    down = _joined(rate_b - low_b, high_a - rate_a, phi)
    up = _joined(high_b - rate_b, rate_a - low_a, phi)
    return value, max(-1.0, value - down), min(1.0, value + up)


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value of McNemar's test. Example: mcnemar_p(1, 7) is 0.0703."""
    count = only_a + only_b
    fewer = min(only_a, only_b)
    return min(1.0, 2 * sum(comb(count, k) for k in range(fewer + 1)) / 2**count)


def _joined(one: float, other: float, phi: float) -> float:
    return sqrt(max(0.0, one**2 - 2 * phi * one * other + other**2))


def _compare_evaluations(a: EvaluationRecord, b: EvaluationRecord) -> Difference:
    """Compare by pairs; evaluations without equal seeds, or without listed episodes, as independent ones."""
    in_a, in_b = (
        {outcome.seed: outcome.success for outcome in record.outcomes if not outcome.is_void} for record in (a, b)
    )
    common = sorted(in_a.keys() & in_b.keys())
    if not common:
        return Difference(
            *_unpaired(*_count_episodes([a]), *_count_episodes([b])), "all episodes; no pairs of equal seeds"
        )
    pairs = [(in_a[seed], in_b[seed]) for seed in common]
    only_a = pairs.count((True, False))
    only_b = pairs.count((False, True))
    interval = paired_interval(pairs.count((True, True)), only_a, only_b, pairs.count((False, False)))
    p_value = mcnemar_p(only_a, only_b)
    words = (
        f"{len(pairs)} pairs of equal seeds: {only_b} succeed only in B, {only_a} only in A; McNemar p = {p_value:.2g}"
    )
    return Difference(*interval, words)


def _count_episodes(records: Sequence[EvaluationRecord]) -> tuple[int, int]:
    return sum(evaluation.successes for evaluation in records), sum(evaluation.episodes for evaluation in records)


def _unpaired(in_a: int, of_a: int, in_b: int, of_b: int) -> tuple[float, float, float]:
    """Return the difference B - A of independent proportions with its 95 % interval. Counts: successes, episodes."""
    rate_a = in_a / of_a
    rate_b = in_b / of_b
    (low_a, high_a) = wilson_interval(in_a, of_a)
    (low_b, high_b) = wilson_interval(in_b, of_b)
    value = rate_b - rate_a
    return (
        value,
        value - _joined(rate_b - low_b, high_a - rate_a, 0),
        value + _joined(high_b - rate_b, rate_a - low_a, 0),
    )


def _paired_seeds(
    a: Sequence[float], b: Sequence[float], seeds_a: Sequence[int], seeds_b: Sequence[int]
) -> tuple[float, float, float]:
    of_a = dict(zip(seeds_a, a, strict=True))
    changes = [rate - of_a[seed] for seed, rate in zip(seeds_b, b, strict=True)]
    value = mean(changes)
    half = _t_quantile(len(changes) - 1) * stdev(changes) / sqrt(len(changes))
    return value, value - half, value + half


def _welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference of two means with Welch's interval."""
    variances = [stdev(rates) ** 2 / len(rates) for rates in (a, b)]
    total = sum(variances)
    value = mean(b) - mean(a)
    if total == 0:
        return value, value, value
    freedom = total**2 / sum(variance**2 / (len(rates) - 1) for variance, rates in zip(variances, (a, b), strict=True))
    half = _t_quantile(int(freedom)) * sqrt(total)  # rounded down, which widens it
    return value, value - half, value + half


def _t_quantile(freedom: int) -> float:
    """Return Student's 0.975 quantile; beyond the table by the first term of the Cornish-Fisher expansion."""
    if freedom <= len(_T_975):
        return _T_975[max(1, freedom) - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom)


@dataclass(frozen=True)
class RunGroup:
    """Runs with equal configurations but for the seed. settings: differing key -> value, as text."""

    settings: dict[str, str]
    runs: list[RunRecord]

    @property
    def label(self) -> str:
        """Distinguishing settings of the group. Example: "actor.lr 0.0001"."""
        return ", ".join(f"{key} {value}" for key, value in self.settings.items()) or "all runs"

    @property
    def last(self) -> list[EvaluationRecord]:
        """The last evaluation of each run that has one."""
        return [run.evaluations[-1] for run in self.runs if run.evaluations]

    def difference_to(self, other: RunGroup) -> Difference | None:
        """Return the success of this group less that of `other`; None if one was not evaluated."""
        if self.success is None or other.success is None:
            return None
        difference = compare_success(other.last, self.last, [other.seeds, self.seeds])
        if len({evaluation.step for evaluation in (*other.last, *self.last)}) == 1:
            return difference
        return replace(difference, basis=f"{difference.basis}; evaluated after step {other.steps} and {self.steps}")

    @property
    def steps(self) -> str:
        """Training steps after which the last evaluations were. Example: "200", or "160 to 200" of runs that differ."""
        low, high = (of(evaluation.step for evaluation in self.last) for of in (min, max))
        return str(low) if low == high else f"{low} to {high}"

    @property
    def seeds(self) -> list[int]:
        """The training seeds of the runs that have an evaluation."""
        return [int(run.config.get(SEED, 0)) for run in self.runs if run.evaluations]

    @property
    def success(self) -> tuple[float, float, float] | None:
        """Rate and 95 % Wilson interval of all last evaluations together; None without any."""
        successes, episodes = (
            sum(getattr(evaluation, name) for evaluation in self.last) for name in ("successes", "episodes")
        )
        return (successes / episodes, *wilson_interval(successes, episodes)) if episodes else None


def group_runs(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Return the groups in the order of their first run.

    Runs that are equal in the seed, too, may differ in their code or files: they are told by their folders.
    """
    flat = [_flatten(run.config) for run in runs]
    compared = [{key: value for key, value in config.items() if key not in NOT_COMPARED} for config in flat]
    if any(keys_of_run in compared[:number] for number, keys_of_run in enumerate(compared)):
        flat = [config | {"folder": str(run.folder)} for run, config in zip(runs, flat, strict=True)]
    keys = dict.fromkeys(key for config in flat for key in config)
    differing = [key for key in keys if key not in NOT_COMPARED and len({config.get(key) for config in flat}) > 1]
    groups: dict[tuple, RunGroup] = {}
    for run, config in zip(runs, flat, strict=True):
        settings = {key: config.get(key, "-") for key in differing if key != SEED}
        groups.setdefault(tuple(settings.values()), RunGroup(settings, [])).runs.append(run)
    return list(groups.values())


def curve(metric: str, group: RunGroup, colour: int) -> tuple[Series, Band] | None:
    """Return the mean of a logged metric over the seeds, and the band from the lowest to the highest; None: not logged.

    colour: 1 to 8.
    """
    logged = [{line["step"]: line.get(metric) for line in run.metrics} for run in group.runs]
    return _over_seeds(group.label, logged, colour)


def evaluation_curve(group: RunGroup, colour: int) -> tuple[Series, Band] | None:
    """Return the mean success of evaluations over the seeds, and its band; None without evaluations."""
    measured: list[dict[float, float | None]] = [
        {evaluation.step: evaluation.success_rate for evaluation in run.evaluations} for run in group.runs
    ]
    return _over_seeds(group.label, measured, colour)


def _over_seeds(label: str, by_run: Sequence[dict[float, float | None]], colour: int) -> tuple[Series, Band] | None:
    """Average over the runs that have a value at a step."""
    steps = []
    means = []
    lows = []
    highs = []
    for step in sorted({step for values in by_run for step in values}):
        known = [value for values in by_run if (value := values.get(step)) is not None]
        if known:
            steps.append(step)
            means.append(sum(known) / len(known))
            lows.append(min(known))
            highs.append(max(known))
    return (Series(label, steps, means, colour), Band(steps, lows, highs, colour)) if steps else None


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = "null" if value is None else str(value)
    return flat
