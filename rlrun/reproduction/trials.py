"""Episodes of a policy with conventions changed: each set of changes on the same starts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.cluster.launch import Machines
from rlrun.config.checks import OF_TRAINING
from rlrun.config.loader import load
from rlrun.config.recorded import RecordedConfig, quoted
from rlrun.config.schema import RunConfig
from rlrun.data.checksums import CHECKSUMS
from rlrun.edges.reports import EpisodeReport
from rlrun.edges.starts import VALIDATION_SEEDS
from rlrun.policies.flow.lerobot_config import PREPROCESSOR
from rlrun.policies.flow.lerobot_processors import NORMALIZER, POSTPROCESSOR, UNNORMALIZER
from rlrun.reproduction.conventions import REMOVED, SCALED, Change, Edit
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json
from rlrun.training.evaluation import require_all, run_episodes
from rlrun.training.session import open_session

ROLES = ["env", "rollout"]
LOG = "trials.log"
_MAX_NAME = 60  # characters, each of at most four bytes
SEPARATE = (ExitStatus.bad_config, ExitStatus.bad_input, ExitStatus.placement)  # a change that cannot be tried


@dataclass
class Trials:
    """Runs a policy with changes, each in a session of its own.

    Example::

        trials = Trials(["env=libero", …], None, Path("policy"), Path("runs/reproduce/1"))
        trials.run((Change(…),), 0, 4)      # [True, False, True, True]
    """

    overrides: Sequence[str]  # of the unchanged run
    recorded: RecordedConfig | None
    policy: Path | None  # its folder; None: it is behind a server
    run_dir: Path
    say: Callable[[str], None] = lambda words: None  # prints a line on each trial
    reasons: dict[str, str] = field(default_factory=dict)  # why changes could not be tried, by their words
    episodes: dict[str, list[EpisodeReport]] = field(default_factory=dict)  # by the words of the changes

    def config(self, changes: Sequence[Change] = ()) -> RunConfig:
        """Return the configuration with changes. Raises RunError if they do not fit."""
        given = {override.partition("=")[0]: override for override in self.overrides}
        for change in changes:
            given |= {override.partition("=")[0]: override for override in change.overrides}
        return load(list(given.values()), recorded=self.recorded, skipped=OF_TRAINING)

    def run(self, changes: tuple[Change, ...], first: int, end: int) -> list[bool] | None:
        """Return the successes on starts first to end; None: the changes do not fit this policy or world."""
        name = words_of(changes)
        known = self.episodes.get(name, [])
        try:
            with self._spoken():
                reports = [*known[first:end], *self._reports(changes, max(first, len(known)), end)]
        except RunError as error:
            if not changes or error.exit_status not in SEPARATE:
                raise
            self.reasons[name] = f"{error.message} {error.cause or ''}".strip()
            return None
        self.episodes[name] = [*known[:first], *reports, *known[end:]]
        if len(known) < end:
            self.say(f"  {name or 'unchanged'}: {sum(report.success for report in reports)} of {end - first} succeed")
        return [report.success for report in reports]

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """Let the first session speak to the console, and later ones, which say the same, to a file."""
        if not self.episodes:
            yield
            return
        with (self.run_dir / LOG).open("a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
            yield

    def _reports(self, changes: tuple[Change, ...], first: int, end: int) -> list[EpisodeReport]:
        """Run the episodes of starts first to end, in order."""
        if first >= end:
            return []
        place = self.run_dir / "trials" / f"{_file_name(changes)}_{first}"
        edits = [edit for change in changes for edit in change.edits]
        policy = self.policy
        if policy is not None and edits:
            policy = edited_copy(policy, edits, place / "policy")
        seeds = [VALIDATION_SEEDS.start + number for number in range(first, end)]
        config = self.config((*changes, Change("", "", (f"output_dir={quoted(str(place))}",))))
        with open_session(config, Machines(config), ROLES, is_evaluation=True) as session:
            session.controller.load_simulators()
            session.controller.load_rollout(str(policy or config.evaluation.server), is_final=True)
            reports = run_episodes(session, 0, 0, seeds, has_video=False)
        require_all(seeds, reports)
        whole = {report.seed: report for report in reports if not report.infra_fault}
        return [whole[seed] for seed in seeds]


def words_of(changes: Sequence[Change]) -> str:
    """Return changes in words. Example: "picture: turned = raw and sentence = capital"."""
    return " and ".join(change.words for change in changes)


def _file_name(changes: Sequence[Change]) -> str:
    """Return changes as the name of a folder, which file systems limit to 255 bytes."""
    words = words_of(changes) or "unchanged"
    name = "".join(letter if letter.isalnum() or letter in "=.-" else "_" for letter in words)
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[:_MAX_NAME]}_{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def edited_copy(folder: Path, edits: Sequence[Edit], out: Path) -> Path:
    """Return a copy of a policy folder with fields of its JSON files changed. Its weights are links where possible."""
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.field.file, []).append(edit)
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS):
        name = file.relative_to(folder)
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if str(name) in by_file:
            whole = [edit.value for edit in by_file[str(name)] if not edit.field.path]
            if whole:
                shutil.copyfile(whole[0], target)
                continue
            content = read_json(file)
            for edit in by_file[str(name)]:
                _put(content, edit.field.path, edit.value)
            target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        elif not target.exists():
            try:
                os.link(file.resolve(), target)  # in a model hub's cache, files are links with relative targets
            except OSError:
                shutil.copyfile(file, target)
    for edit in edits:
        if edit.field.path[:1] == (SCALED,):
            _scale_processors(out, str(edit.field.path[1]), edit.value)
    return out


def _put(content: Any, path: Sequence[str | int], value: Any) -> None:
    for part in path[:-1]:
        content = content.setdefault(part, {}) if isinstance(content, dict) else content[part]
    if value is REMOVED:
        content.pop(path[-1], None)
    else:
        content[path[-1]] = value


def _scale_processors(folder: Path, feature: str, mode: str) -> None:
    """Change the scaling of a feature in LeRobot's processors too, which repeat it."""
    for name in (PREPROCESSOR, POSTPROCESSOR):
        file = folder / f"{name}.json"
        if not file.is_file():
            continue
        content = read_json(file)
        for step in content.get("steps", []):
            if step.get("registry_name") in (NORMALIZER, UNNORMALIZER):
                step.setdefault("config", {}).setdefault("norm_map", {})[feature] = mode
        file.unlink()  # a link to the original
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
