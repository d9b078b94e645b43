"""Record of a policy's training, from its run folder: starts, evaluations, the world, other runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rlrun.config.provenance import CHECKPOINTS, POLICY_CONFIG, selected
from rlrun.config.recorded import read_config
from rlrun.config.registry import ALGORITHMS, POLICIES
from rlrun.data import checkpoint_folder
from rlrun.edges.starts import EpisodeStart
from rlrun.observability.records import (
    EvaluationRecord,
    Purpose,
    RunRecord,
    SeenStarts,
    read_run,
    read_starts,
    read_world,
)
from rlrun.observability.report.differences import group_runs
from rlrun.observability.run_files import EPISODES, METRICS, STARTS, WORLD, read_json_lines

MAX_ANCESTORS = 8  # runs from whose policies a run began, one after another


def _last_step(run: RunRecord, folder: Path) -> int:
    """Return the training steps of the policy that a run exported when it ended.

    A run that goes on afterwards has more steps, and exports another one at its next end.
    """
    exported = folder / "policy" / POLICY_CONFIG
    planned = read_config(exported).tree.get("num_steps") if exported.is_file() else None
    return run.num_steps if planned is None else min(int(planned), run.num_steps)


@dataclass
class History:
    """The record of the run that trained a policy, and of the runs whose policies it began with.

    Example: History.of(Path("runs/a/2026-01-01/checkpoints/step_00000040")).step == 40
    """

    folder: Path  # of the run
    step: int  # training steps of the policy
    run: RunRecord
    seen: list[SeenStarts] = field(default_factory=list)  # of the run and its ancestors
    world: list[dict[str, str]] = field(default_factory=list)  # fingerprints of the simulators
    origin: str = ""  # the first policy of the eldest run
    is_origin_known: bool = False  # whether it is on record what that policy was trained on
    recorded_steps: set[int] = field(default_factory=set)  # training steps of this run whose starts are on record
    damages: list[str] = field(default_factory=list)  # files of the record that are missing or damaged

    @classmethod
    def of(cls, place: Path) -> History | None:
        """Read the record beside a policy: `place` is a run folder, a checkpoint, or the policy in either.

        Returns None if no run folder is there: the policy was trained elsewhere, or moved.
        """
        folder = next((candidate for candidate in _candidates(place) if (candidate / METRICS).is_file()), None)
        if folder is None:
            return None
        run = read_run(folder)
        checkpoint = place.parent if place.name == "policy" else place
        step = checkpoint_folder.step_of(checkpoint)
        history = cls(folder, _last_step(run, folder) if step is None else step, run, world=read_world(folder))
        history.origin, history.is_origin_known = history._add_ancestors()
        if not history.world:
            history.damages.append(f"{folder / WORLD} is missing or damaged")
        return history

    def _add_ancestors(self) -> tuple[str, bool]:
        """Read the starts of this run and of those before it.

        Returns the policy with which the first one began, and whether what it was trained on is on record.
        """
        folder = self.folder
        config = self.run.config
        for _ in range(MAX_ANCESTORS):
            self._add_starts(folder)
            if folder == self.folder:
                self.recorded_steps = {part.step for part in self.seen if part.during is Purpose.training}
            path = selected(config, "policy.path")
            if path is None or float(selected(config, "algorithm.imitation_coef") or 0) > 0:
                origin, is_known = _own_origin(config)
                if path is None or not is_known:
                    return origin, is_known
            parent = next((candidate for candidate in _candidates(Path(path)) if (candidate / STARTS).is_file()), None)
            if parent is None or parent == folder:
                return f"{path}, of whose training nothing is on record", False
            folder = parent
            config = read_run(parent).config
        return f"a chain of more than {MAX_ANCESTORS} runs", False

    def _add_starts(self, folder: Path) -> None:
        try:
            self.seen += read_starts(folder)
        except (ValueError, LookupError, TypeError) as error:
            self.damages.append(f"{folder / STARTS} is damaged: {type(error).__name__}: {error}")

    @property
    def missing_steps(self) -> list[int]:
        """Training steps of this policy whose starts are not on record, and that may have had some."""
        return [step for step in self._absent_steps if step not in self._steps_without_starts]

    @property
    def unrecorded_words(self) -> str:
        """Sentence on absent lines of steps in which no episode began, as of earlier versions; "" without any."""
        without = [step for step in self._absent_steps if step in self._steps_without_starts]
        if not without:
            return ""
        return (
            f"{len(without)} of {self.step} steps, first {without[0]}, have no line in {STARTS}: in them no episode "
            "ended and no simulator or worker was replaced, so that all went on with the episodes of the step before."
        )

    @property
    def _absent_steps(self) -> list[int]:
        return [step for step in range(1, self.step + 1) if step not in self.recorded_steps]

    @cached_property
    def _steps_without_starts(self) -> set[int]:
        """Steps in which episodes were carried on and none began: one begins where one ends, or something restarts."""
        if not selected(self.run.config, "algorithm.carry_episodes"):
            return set()
        ended = {line.get("step") for line in read_json_lines(self.folder / EPISODES)}
        ended |= {line.get("step") for line in self.run.losses}
        quiet = [line for line in self.run.metrics if line.get("num_simulator_restarts") == 0]
        return {line["step"] for line in quiet if line["step"] > 1 and line["step"] not in ended}

    @cached_property
    def starts(self) -> dict[str, tuple[EpisodeStart, SeenStarts]]:
        """Each start that training and selection saw, by the digest of its first observation."""
        return {start.digest: (start, part) for part in reversed(self.seen) for start in part.starts}

    @cached_property
    def seeds(self) -> dict[int, SeenStarts]:
        """Each reset seed that training and selection used."""
        return {start.seed: part for part in reversed(self.seen) for start in part.starts}

    @property
    def digest(self) -> str:
        """SHA-256 of all recorded starts, which names the record that a card was made from."""
        text = "\n".join(f"{part.step} {start.seed} {start.digest}" for part in self.seen for start in part.starts)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def evaluations(self) -> list[EvaluationRecord]:
        """The evaluations among which a checkpoint of this run could be chosen."""
        return self.run.evaluations

    @cached_property
    def siblings(self) -> list[RunRecord]:
        """Runs beside this one, with it, that differ from it in the seed alone: those of a sweep."""
        beside = [run_folder for run_folder in sorted(self.folder.parent.iterdir()) if (run_folder / METRICS).is_file()]
        runs = [self.run if run_folder.samefile(self.folder) else read_run(run_folder) for run_folder in beside]
        group = next((group for group in group_runs(runs) if self.run in group.runs), None)
        return [] if group is None else group.runs


def _candidates(place: Path) -> Iterator[Path]:
    """Yield the folders that may be the run's, whose policy is at `place`."""
    inside = place.parent if place.name == "policy" else place
    yield inside
    if inside.parent.name == CHECKPOINTS:
        yield inside.parent.parent


def _own_origin(config: dict[str, Any]) -> tuple[str, bool]:
    demos = config.get("demos", {})
    if demos.get("path") is not None:
        return f"a new policy, and demonstrations in {demos['path']}, whose starts are not on record", False
    if not _imitates(config):
        return "a new policy", True
    first = int(demos.get("seed", 0))
    count = int(demos.get("num_episodes", 0))
    return f"a new policy that had {count} episodes of rlrun's expert, from seed {first} on", True


def _imitates(config: dict[str, Any]) -> bool:
    """Return whether a run's policy or algorithm learned from demonstrations."""
    if float(selected(config, "algorithm.imitation_coef") or 0) > 0:
        return True
    kinds = ((POLICIES, selected(config, "policy.kind")), (ALGORITHMS, selected(config, "algorithm.name")))
    return any(kind in registry.names() and registry.get(kind).needs_demonstrations for registry, kind in kinds)
