"""How long each phase may stay silent: learned from the run, kept for the next one of the same configuration."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from rlrun.config.provenance import as_tree
from rlrun.config.schema import RunConfig
from rlrun.observability.silence import FIRST

# What changes neither what the workers do nor how long it takes.
_IRRELEVANT = (
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


class Budgets:
    """Silences per "role.phase" and "role.phase, first". A peer's silence counts for all workers of its role.

    Example::

        budgets = Budgets(config)
        budgets.learn("env/3", {"simulate": 8.2})
        budgets.seconds("env", "simulate", is_first=False)   # 41.0: five times 8.2
    """

    def __init__(self, config: RunConfig):
        settings, cluster = config.watchdog, config.cluster
        self._factor, self._floor_s = settings.factor, settings.floor_s
        self._ceiling_s = {True: cluster.start_deadline_s, False: cluster.step_deadline_s}
        self._path = Path(config.cache_dir) / "budgets" / f"{_fingerprint(config)}.json"
        self._earlier = _read(self._path)
        self._seen: dict[str, float] = {}

    def learn(self, worker: str, slowest_s: Mapping[str, float]) -> None:
        """The longest silences of a worker's phases so far, as WorkerStatus tells them."""
        role = worker.partition("/")[0]
        for phase, seconds in slowest_s.items():
            key = f"{role}.{phase}"
            self._seen[key] = max(seconds, self._seen.get(key, 0.0))

    def usual(self, role: str, phase: str, is_first: bool) -> float | None:
        """The longest silence seen, in this run or the last one; None: the phase is new."""
        key = f"{role}.{phase}{FIRST if is_first else ''}"
        known = [book[key] for book in (self._seen, self._earlier) if key in book]
        return max(known) if known else None

    def seconds(self, role: str, phase: str, is_first: bool) -> float:
        """The budget of a phase."""
        usual, ceiling_s = self.usual(role, phase, is_first), self._ceiling_s[is_first]
        return ceiling_s if usual is None else min(ceiling_s, max(self._floor_s, self._factor * usual))

    def delivery_s(self, phase: str) -> float:
        """How long workers that were asked may stay idle: twice the time that the driver's phase usually takes."""
        usual = self.usual("driver", phase, False)
        return self._ceiling_s[False] if usual is None else min(self._ceiling_s[False], max(self._floor_s, 2 * usual))

    def mute_s(self, role: str, phase: str, is_first: bool) -> float:
        """How long a worker may not answer: what it was told to do last may be over, and another phase on."""
        usual = self.usual(role, phase, is_first)
        if usual is None and is_first:
            return self._ceiling_s[True]
        return max(self._longest_steady(role), self.seconds(role, phase, is_first) if usual is not None else 0.0)

    @property
    def floor_s(self) -> float:
        """The least budget of all."""
        return self._floor_s

    @property
    def start_s(self) -> float:
        """The most that a first time may take."""
        return self._ceiling_s[True]

    @property
    def step_s(self) -> float:
        """The most that anything but a first time may take."""
        return self._ceiling_s[False]

    def _longest_steady(self, role: str) -> float:
        """The largest budget of the phases that workers of this role come back to; where none is known, the ceiling."""
        known = [*self._earlier, *self._seen]  # copied at once: the console's thread learns as well
        keys = {key for key in known if not key.endswith(FIRST)}
        phases = [key.partition(".")[2] for key in keys if key.startswith(f"{role}.")]
        return max((self.seconds(role, phase, False) for phase in phases), default=self._ceiling_s[False])

    def bound_s(self) -> float:
        """No silence longer than this goes unreported."""
        return max(self._ceiling_s.values())

    def told(self) -> str:
        """For people. Example: "env.simulate usual 8.2 s, alarm 41 s; 12 other phases 20 s"."""
        rows, num_others = [], 0
        for key in sorted({*self._seen, *self._earlier}):
            role, _, rest = key.partition(".")
            if role == "driver":
                continue  # it waits for the others
            phase, is_first = rest.removesuffix(FIRST), rest.endswith(FIRST)
            usual, alarm_s = self.usual(role, phase, is_first) or 0.0, self.seconds(role, phase, is_first)
            if alarm_s > self._floor_s:
                rows.append(f"{key}: usual {usual:.2g} s, alarm {alarm_s:.0f} s")
            else:
                num_others += 1
        return "; ".join([*rows, *([f"{num_others} other phases: alarm {self._floor_s:.0f} s"] if num_others else [])])

    def save(self) -> None:
        """Keep what was learned for the next run; what this run did not go through stays as it was."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(self._earlier | self._seen, indent=1, sort_keys=True))
        part.replace(self._path)


def _read(path: Path) -> dict[str, float]:
    try:
        return {str(key): float(value) for key, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError):  # none yet, or spoilt: it is learned again
        return {}


def _fingerprint(config: RunConfig) -> str:
    """Equal for runs whose phases take equally long."""
    tree = {key: value for key, value in as_tree(config).items() if key not in _IRRELEVANT}
    return hashlib.sha256(json.dumps(tree, default=str).encode()).hexdigest()[:16]
