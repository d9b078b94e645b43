"""Time budgets of phases without progress, learned from this run and cached for the next one with the same config."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.config.provenance import as_tree
from rlrun.config.schema import RunConfig
from rlrun.system.telemetry import FIRST_TIME
from rlrun.watchdog.wait_graph import IDLE, Leaf, Process, transit

logger = logging.getLogger(__name__)

MAX_SAMPLES = 50
QUANTILE = 0.95
OUTLIERS_IN_A_ROW = 5  # consecutive longer silences, each of which ended by itself, that become usual
MIN_REPORT_S = 20.0  # a wait is reported as slow after this time, and after twice its usual time
# Sections and keys that do not change the duration of any phase.
_IRRELEVANT_KEYS = (
    "name",
    "seed",
    "num_steps",
    "max_minutes",
    "output_dir",
    "cache_dir",
    "cluster",
    "watchdog",
    "doctor",
    "node",
    "logging",
    "record",
    "replay",
)


@dataclass
class SilenceSamples:
    """Last silences of a phase in seconds, oldest first.

    Example::

        samples = Samples()
        samples.add(8.2)
        samples.usual           # 8.2
        samples.add_outlier(41.0)   # False: the first one; the fifth in a row becomes usual
    """

    usual_s: list[float] = field(default_factory=list)
    outliers_s: list[float] = field(default_factory=list)

    @property
    def usual(self) -> float | None:
        """The 95 % quantile, which is the longest of fewer than 20 samples; None without samples."""
        ordered = sorted(self.usual_s)
        return ordered[math.ceil(QUANTILE * len(ordered)) - 1] if ordered else None

    def add(self, seconds: float) -> None:
        """Add a silence that was too short for a warning."""
        self.usual_s = [*self.usual_s, seconds][-MAX_SAMPLES:]
        self.outliers_s = []

    def add_outlier(self, seconds: float) -> bool:
        """Add a silence that led to a warning and ended by itself. Returns whether it is usual from now on."""
        self.outliers_s = [*self.outliers_s, seconds]
        if len(self.outliers_s) < OUTLIERS_IN_A_ROW:
            return False
        self.usual_s = [*self.usual_s, *self.outliers_s][-MAX_SAMPLES:]
        self.outliers_s = []
        return True

    def as_tree(self) -> dict[str, list[float]]:
        """Return the samples as JSON values."""
        return {"usual_s": self.usual_s, "outliers_s": self.outliers_s}

    @classmethod
    def read(cls, tree: Any, ceiling_s: float) -> SilenceSamples:
        """Read the output of `as_tree`. Entries that are not seconds, or exceed the ceiling, are omitted."""
        lists = [tree.get(name) if isinstance(tree, Mapping) else None for name in ("usual_s", "outliers_s")]
        kept = [
            [s for s in samples if _is_valid(s, ceiling_s)] if isinstance(samples, list) else [] for samples in lists
        ]
        return cls(kept[0][-MAX_SAMPLES:], kept[1][: OUTLIERS_IN_A_ROW - 1])


def _is_valid(seconds: Any, ceiling_s: float) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= ceiling_s


class Slowness:
    """Counts of the leaves of the wait-for graph that delay one wait, from check to check.

    Example::

        slowness = Slowness("trajectories of step 3", usual_s=4.0)
        slowness.check(leaves, processes, waited_s=21.0)
        # "trajectories of step 3: 21 s so far, usual 4 s; 80 % of it: the way between sim-0 and train-0"
    """

    def __init__(self, subject: str, usual_s: float | None):
        """usual_s: usual time of the driver's phase; None: unknown, nothing is reported."""
        self._subject = subject
        self._usual_s = usual_s
        self._seen: Counter[str] = Counter()
        self._is_reported = False

    def check(
        self, leaves: Iterable[Leaf], processes: Mapping[str, Process], waited_s: float, is_known: bool = False
    ) -> str | None:
        """Count the leaves that delay the wait now. Returns a sentence once, when the wait is late; else None.

        is_known: why it is late was said before.
        """
        self._is_reported |= is_known
        self._seen.update({_describe_leaf(leaf, processes) for leaf in leaves})
        if self._is_reported or self._usual_s is None or waited_s < max(MIN_REPORT_S, 2 * self._usual_s):
            return None
        self._is_reported = True
        what, count = self._seen.most_common(1)[0]
        share = 100 * count / sum(self._seen.values())
        return f"{self._subject}: {waited_s:.0f} s so far, usual {self._usual_s:.2g} s; {share:.0f} % of it: {what}"


def _describe_leaf(leaf: Leaf, processes: Mapping[str, Process]) -> str:
    way = transit(leaf, processes)
    if way is not None:
        hosts = sorted((way.from_host, way.to_host))
        return f"the way between {hosts[0]} and {hosts[1]}"
    process = processes.get(leaf.worker)
    if process is None:
        return f"{leaf.worker} is not there"
    if not process.is_answering:
        state = "does not answer"
    else:
        state = "has not begun" if process.phase == IDLE else f"in {process.phase}"
    return f"{leaf.worker}@{process.host} {state}"


class Budgets:
    """Silences (times without progress) per "role.phase" and "role.phase, first", shared by the workers of a role.

    The usual time is the 95 % quantile of the last silences that were too short for a warning. It excludes silences
    that led to an alarm, or that ended with the loss of the worker.

    Example::

        budgets = Budgets(config)
        budgets.learn("env/3", {"simulate": (1, 8.2)})
        budgets.seconds("env", "simulate", is_first=False)   # 41.0: five times 8.2
    """

    def __init__(self, config: RunConfig):
        settings = config.watchdog
        cluster = config.cluster
        self._factor = settings.factor
        self._floor_s = settings.floor_s
        self._ceiling_s = {True: cluster.start_deadline_s, False: cluster.step_deadline_s}
        self._path = Path(config.cache_dir) / "budgets" / f"{_fingerprint(config)}.json"
        self._samples = {
            key: SilenceSamples.read(tree, self._ceiling(key)) for key, tree in _read_cache(self._path).items()
        }
        self._numbers: dict[tuple[str, str], int] = {}  # (worker, phase) -> number of the last sample learned
        self._lock = threading.Lock()  # the console's thread and the driver's waits both learn

    def learn(self, worker: str, silences: Mapping[str, tuple[int, float]], factor: float = 1.0) -> list[str]:
        """Learn the last samples of a worker's phases (`WorkerStatus.silences`), each once.

        factor: the load factor of its host. Returns a sentence about each phase whose usual time has changed.
        """
        news = []
        with self._lock:
            for phase, (number, seconds) in silences.items():
                if self._numbers.get((worker, phase)) != number:
                    self._numbers[worker, phase] = number
                    news += self._learn_sample(f"{worker.partition('/')[0]}.{phase}", seconds, factor)
        return news

    def learn_driver(self, phase: str, seconds: float) -> list[str]:
        """Learn the duration of a phase of the driver in which no worker was late or lost."""
        with self._lock:
            return self._learn_sample(f"driver.{phase}", seconds, 1.0)

    def _learn_sample(self, key: str, seconds: float, factor: float) -> list[str]:
        role, _, phase = key.partition(".")
        samples = self._samples.setdefault(key, SilenceSamples())
        budget_s = self._budget(key, factor)
        warning_s = warning_after_s(samples.usual, budget_s)
        if role == "driver":  # no alarm limits its phases; a warning comes at twice the usual time
            warning_s = max(MIN_REPORT_S, 2 * samples.usual) if samples.usual is not None else math.inf
            budget_s = math.inf
        entry_s = round(min(seconds, self._budget(key, 1.0)), 3)  # limits the effect of one sample on the budget
        if seconds <= warning_s:
            samples.add(entry_s)
        elif seconds <= budget_s and samples.add_outlier(entry_s):
            return [
                f"{role}: {phase} took {seconds:.2g} s, {OUTLIERS_IN_A_ROW} times in a row: that is usual from now on"
            ]
        return []

    def usual(self, role: str, phase: str, is_first: bool) -> float | None:
        """Return the usual silence of a phase, in this run and earlier ones; None if the phase is new."""
        samples = self._samples.get(_phase_key(role, phase, is_first))
        return samples.usual if samples is not None else None

    def seconds(self, role: str, phase: str, is_first: bool, factor: float = 1.0) -> float:
        """Return the budget of a phase on a host with load factor `factor`."""
        return self._budget(_phase_key(role, phase, is_first), factor)

    def _budget(self, key: str, factor: float) -> float:
        samples = self._samples.get(key)
        ceiling_s = self._ceiling(key)
        usual = samples.usual if samples is not None else None
        return ceiling_s if usual is None else min(ceiling_s, factor * max(self._floor_s, self._factor * usual))

    def _ceiling(self, key: str) -> float:
        """Return the largest budget of a phase; infinite for the driver, which waits for the workers."""
        return math.inf if key.startswith("driver.") else self._ceiling_s[key.endswith(FIRST_TIME)]

    def delivery_s(self, phase: str, factor: float = 1.0) -> float:
        """Return the budget of an idle worker with an open request: twice the usual time of the driver's phase."""
        usual = self.usual("driver", phase, False)
        return self.step_s if usual is None else min(self.step_s, factor * max(self._floor_s, 2 * usual))

    def unresponsive_s(self, role: str, phase: str, is_first: bool, factor: float = 1.0) -> float:
        """Return the budget of a worker that does not answer; its phase may have changed since its last answer."""
        usual = self.usual(role, phase, is_first)
        if usual is None and is_first:
            return self._ceiling_s[True]
        own_s = self.seconds(role, phase, is_first, factor) if usual is not None else 0.0
        return max(self._longest_steady(role, factor), own_s)

    @property
    def floor_s(self) -> float:
        """The smallest budget of any phase."""
        return self._floor_s

    @property
    def start_s(self) -> float:
        """The largest budget of a phase the first time."""
        return self._ceiling_s[True]

    @property
    def step_s(self) -> float:
        """The largest budget of a phase after the first time."""
        return self._ceiling_s[False]

    def _known_phases(self) -> list[str]:
        """Return the phases with a usual time. The dict is copied, since the console's thread learns as well."""
        return [key for key, samples in list(self._samples.items()) if samples.usual is not None]

    def _longest_steady(self, role: str, factor: float) -> float:
        """Return the largest budget of the role's repeated phases; the ceiling if none is known."""
        keys = [key for key in self._known_phases() if key.startswith(f"{role}.") and not key.endswith(FIRST_TIME)]
        return max((self._budget(key, factor) for key in keys), default=self.step_s)

    def bound_s(self) -> float:
        """Return the longest silence that can go unreported."""
        return max(self._ceiling_s.values())

    def summary(self) -> str:
        """Describe the budgets in one line. Example: "env.simulate usual 8.2 s, alarm 41 s; 12 other phases 20 s"."""
        rows = []
        num_others = 0
        for key in sorted(self._known_phases()):
            if key.startswith("driver."):
                continue  # it waits for the workers
            alarm_s = self._budget(key, 1.0)
            if alarm_s > self._floor_s:
                rows.append(f"{key}: usual {self._samples[key].usual:.2g} s, alarm {alarm_s:.0f} s")
            else:
                num_others += 1
        return "; ".join([*rows, *([f"{num_others} other phases: alarm {self._floor_s:.0f} s"] if num_others else [])])

    def save(self) -> None:
        """Write the last silences to the cache for the next run, which can do without them where that fails."""
        part = self._path.with_suffix(f".{os.getpid()}")
        kept = {key: samples.as_tree() for key, samples in self._samples.items()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(kept, indent=1, sort_keys=True))
            part.replace(self._path)
        except OSError as error:
            logger.info("usual times are not kept for the next run: %s", error)


def warning_after_s(usual_s: float | None, budget_s: float) -> float:
    """Return the silence after which a warning is printed: half the budget at most. usual_s: None if unknown."""
    return min(budget_s / 2, max(MIN_REPORT_S, 2 * (usual_s or 0.0)))


def _phase_key(role: str, phase: str, is_first: bool) -> str:
    return f"{role}.{phase}{FIRST_TIME if is_first else ''}"


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):  # missing or corrupted: the times are learned again
        return {}
    return content if isinstance(content, dict) else {}


def _fingerprint(config: RunConfig) -> str:
    """Return a hash of the keys that affect the durations of phases."""
    tree = {key: value for key, value in as_tree(config).items() if key not in _IRRELEVANT_KEYS}
    return hashlib.sha256(json.dumps(tree, default=str).encode()).hexdigest()[:16]
