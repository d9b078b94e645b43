"""Groups of runs to compare: runs of one group differ in the seed only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.observability.differences import Difference, between
from rlrun.observability.intervals import wilson_interval
from rlrun.observability.records import EvaluationRecord
from rlrun.observability.report.svg_charts import Band, Series
from rlrun.observability.run_record import RunRecord

SEED = "seed"
# keys that say where a run is, not what it is
NOT_COMPARED = ("name", "output_dir", "cache_dir", "python_path", "checkpoint.resume", "cluster.address")


@dataclass(frozen=True)
class RunGroup:
    """Runs with equal configurations but for the seed. settings: differing key -> value, as text."""

    settings: dict[str, str]
    runs: list[RunRecord]

    @property
    def label(self) -> str:
        """What distinguishes the group. Example: "actor.lr 0.0001"."""
        return ", ".join(f"{key} {value}" for key, value in self.settings.items()) or "all runs"

    @property
    def last(self) -> list[EvaluationRecord]:
        """The last evaluation of each run that has one."""
        return [run.evaluations[-1] for run in self.runs if run.evaluations]

    def less(self, other: RunGroup) -> Difference | None:
        """How much higher the success of this group is than that of `other`; None if one was not evaluated."""
        if self.success is None or other.success is None:
            return None
        return between(other.last, self.last, [other.seeds, self.seeds])

    @property
    def seeds(self) -> list[int]:
        """The training seeds of the runs that have an evaluation."""
        return [int(run.config.get(SEED, 0)) for run in self.runs if run.evaluations]

    @property
    def success(self) -> tuple[float, float, float] | None:
        """Rate and 95 % Wilson interval of all last evaluations together; None without any."""
        successes, episodes = (sum(getattr(one, name) for one in self.last) for name in ("successes", "episodes"))
        return (successes / episodes, *wilson_interval(successes, episodes)) if episodes else None


def grouped(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Return the groups in the order of their first run.

    Runs that are equal in the seed, too, may differ in their code or files: they are told by their folders.
    """
    flat = [_flat(run.config) for run in runs]
    compared = [{key: value for key, value in config.items() if key not in NOT_COMPARED} for config in flat]
    if any(one in compared[:number] for number, one in enumerate(compared)):
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
        {one.step: one.success_rate for one in run.evaluations} for run in group.runs
    ]
    return _over_seeds(group.label, measured, colour)


def _over_seeds(label: str, by_run: Sequence[dict[float, float | None]], colour: int) -> tuple[Series, Band] | None:
    """Average over the runs that have a value at a step."""
    steps, means, lows, highs = [], [], [], []
    for step in sorted({step for values in by_run for step in values}):
        found = [value for values in by_run if (value := values.get(step)) is not None]
        if found:
            steps.append(step)
            means.append(sum(found) / len(found))
            lows.append(min(found))
            highs.append(max(found))
    return (Series(label, steps, means, colour), Band(steps, lows, highs, colour)) if steps else None


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = "null" if value is None else str(value)
    return found
