"""Finds and reads the configuration that a run wrote beside its checkpoints, and into the policies it exported."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlrun.config.recorded_text import CHECKPOINTS, POLICY_CONFIG, Origin, copy_of, origin_of
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

CONFIG = "config.yaml"  # in a run folder
_NOT_OF_A_POLICY: Mapping[str, Sequence[str]] = {  # settings of where and how a run trained; [] is the whole section
    "output_dir": [],
    "node": [],
    "record": [],
    "replay": [],
    "cluster": ["address", "temp_dir", "store_port"],
    "evaluation": ["checkpoint", "server"],
}


@dataclass(frozen=True)
class RecordedConfig:
    """The resolved configuration of a run. file: where it was read. tree: its content, without types.

    origin: who wrote the file. whole: its content, of which `tree` may be a part.
    """

    file: Path
    tree: dict[str, Any]
    origin: Origin
    whole: dict[str, Any]

    def of_policy(self) -> RecordedConfig:
        """Return it without the settings that concern only the training run, for programs that use its policy."""
        kept = {key: value for key, value in self.tree.items() if _NOT_OF_A_POLICY.get(key) != []}
        for section, dropped in _NOT_OF_A_POLICY.items():
            if dropped and isinstance(kept.get(section), dict):
                kept[section] = {key: value for key, value in kept[section].items() if key not in dropped}
        return replace(self, tree=kept)

    def without(self, keys: Sequence[str]) -> RecordedConfig:
        """Return it without some sections or keys, given as "placement" or "placement.roles"."""
        tree = self.tree
        for key in keys:
            tree = _without(tree, key.split("."))
        return replace(self, tree=tree)


def config_of_policy(folder: Path) -> RecordedConfig | None:
    """Return the configuration for a run, checkpoint or policy folder; None if no run left one, as with official ones.

    An exported policy holds its own; a checkpoint is a folder of checkpoints/ in a run folder. Raises RunError.
    """
    place = folder.absolute()
    own = [place / POLICY_CONFIG, place / "policy" / POLICY_CONFIG]
    if (place / CONFIG).is_file() and not (place / "config.json").is_file():
        own.insert(0, place / CONFIG)
    beside = [parent.parent / CONFIG for parent in (place, *place.parents[:2]) if parent.name == CHECKPOINTS]
    found = next((file for file in [*own, *beside] if file.is_file()), None)
    return None if found is None else read_config(found).of_policy()


@dataclass(frozen=True)
class Resumption:
    """The run to resume, and where. checkpoint: one of its checkpoints; None: its newest whole one."""

    recorded: RecordedConfig
    run_dir: Path
    checkpoint: Path | None

    def overrides(self, output_dir: str | None) -> list[str]:
        """Return overrides that continue the run in its folder, or branch off into `output_dir`.

        A branch with checkpoints of its own continues from those, since its command is the same when it is repeated.
        """
        source = "auto" if self.checkpoint is None else str(self.checkpoint)
        if output_dir is None:
            return [f"output_dir={quoted(str(self.run_dir))}", f"checkpoint.resume={quoted(source)}"]
        if any((Path(output_dir) / CHECKPOINTS).glob("step_*")):
            return ["checkpoint.resume=auto"]
        return [f"checkpoint.resume={quoted(str(self.checkpoint or self.run_dir / CHECKPOINTS))}"]


def resumption(folder: str) -> Resumption:
    """Read what `resume=folder` names: a run folder, its checkpoints folder, or one checkpoint. Raises RunError."""
    place = Path(folder).absolute()
    checkpoint = place if place.parent.name == CHECKPOINTS else None
    run_dir = place.parent.parent if checkpoint else place.parent if place.name == CHECKPOINTS else place
    if not (run_dir / CONFIG).is_file() or not place.is_dir():
        raise RunError(
            f"There is no run to resume at {folder}.",
            key="resume",
            value=folder,
            cause=f"It is no folder with a {CONFIG}, nor one of the checkpoints of such a folder.",
            remedy=restoring(run_dir / CONFIG)
            if copy_of(run_dir / CONFIG) is not None
            else "Name the folder that the run printed, such as runs/NAME/TIME, or one of its checkpoints.",
            exit_status=ExitStatus.bad_input,
            row="no-run-to-resume",
        )
    return Resumption(read_config(run_dir / CONFIG), run_dir, checkpoint)


def quoted(value: str) -> str:
    """Return a value of an override, which may have any characters."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_config(file: Path) -> RecordedConfig:
    """Read a file that a run wrote. Raises RunError if it is no mapping of keys."""
    import yaml

    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        tree = error
    if not isinstance(tree, dict):
        raise RunError(
            f"The configuration of the run, {file}, cannot be read.",
            cause=str(tree) if isinstance(tree, Exception) else "It is no mapping of keys.",
            remedy=restoring(file),
            exit_status=ExitStatus.bad_input,
            row="recorded-config-unreadable",
        )
    return RecordedConfig(file, tree, origin_of(file), tree)


def restoring(file: Path) -> str:
    """Return what restores the configuration of a run or of a policy."""
    copy = copy_of(file)
    if copy is None:
        return f"Copy {file.name} again from where it is whole, or start anew with the arguments of the run."
    return f"Restore the copy that is whole: cp {shlex.quote(str(copy))} {shlex.quote(str(file))}"


def _without(tree: dict[str, Any], path: list[str]) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {key: value for key, value in tree.items() if key != head}
    below = tree.get(head)
    return tree | {head: _without(below, rest)} if isinstance(below, dict) else tree
