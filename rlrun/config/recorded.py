"""Finds and reads the configuration that a run wrote beside its checkpoints, and into the policies it exported."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlrun.config import own_mark, policy_keys
from rlrun.config.own_mark import Author
from rlrun.config.recorded_text import CHECKPOINTS, POLICY_CONFIG, Origin, copy_of, origin_of
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import parse_yaml, read_text

CONFIG = "config.yaml"  # in a run folder
_OF_THE_RUN: Mapping[str, Sequence[str]] = {  # where and how the user's own run trained; [] is the whole section
    "output_dir": [],
    "node": [],
    "record": [],
    "replay": [],
    "cluster": ["address", "temp_dir", "store_port"],
    "evaluation": ["checkpoint", "server"],
}


@dataclass(frozen=True)
class RecordedConfig:
    """The resolved configuration of a run.

    file: where it was read. tree: its content, without types. origin: which rlrun wrote it, and whether it is as it was
    written. whole: its content, of which `tree` may be a part. author: who wrote it. remark: a sentence for the user.
    """

    file: Path
    tree: dict[str, Any]
    origin: Origin
    whole: dict[str, Any]
    author: Author = Author.own
    remark: str | None = None

    def of_policy(self, folder: Path, is_trusted: bool, given: Collection[str]) -> RecordedConfig:
        """Return what a program that uses the run's policy, which is in `folder`, takes of it.

        Of the user's own, or if it is trusted, all but what concerns only the training run; else see `policy_keys`.
        """
        if self.author is not Author.own and not is_trusted:
            tree, remark = policy_keys.of_policy(self.file, self.tree, folder, given)
            return replace(self, tree=tree, remark=remark)
        kept = {key: value for key, value in self.tree.items() if _OF_THE_RUN.get(key) != []}
        for section, dropped in _OF_THE_RUN.items():
            if dropped and isinstance(kept.get(section), dict):
                kept[section] = {key: value for key, value in kept[section].items() if key not in dropped}
        return replace(self, tree=kept)

    def without(self, keys: Sequence[str]) -> RecordedConfig:
        """Return it without some sections or keys, given as "placement" or "placement.roles"."""
        tree = self.tree
        for key in keys:
            tree = _without(tree, key.split("."))
        return replace(self, tree=tree)


def config_of_policy(folder: Path, is_trusted: bool = False, given: Collection[str] = ()) -> RecordedConfig | None:
    """Return the configuration for a run, checkpoint or policy folder; None if no run left one, as with official ones.

    An exported policy holds its own; a checkpoint is a folder of checkpoints/ in a run folder. is_trusted: the user's
    word that the folder is the user's own. given: the keys that the user sets. Raises RunError.
    """
    place = folder.absolute()
    own = [place / POLICY_CONFIG, place / "policy" / POLICY_CONFIG]
    if (place / CONFIG).is_file() and not (place / "config.json").is_file():
        own.insert(0, place / CONFIG)
    beside = [parent.parent / CONFIG for parent in (place, *place.parents[:2]) if parent.name == CHECKPOINTS]
    found = next((file for file in [*own, *beside] if file.is_file()), None)
    if found is None:
        return None
    holds_policy = place if (place / "config.json").is_file() else place / "policy"
    return read_config(found).of_policy(holds_policy, is_trusted, given)


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


def resumption(folder: str, is_trusted: bool = False) -> Resumption:
    """Read what `resume=folder` names: a run folder, its checkpoints folder, or one checkpoint.

    is_trusted: the user's word that the folder is the user's own. Raises RunError, without it for another's folder too.
    """
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
        )
    recorded = read_config(run_dir / CONFIG)
    if recorded.author is not Author.own and not is_trusted:
        raise _asked(folder, recorded)
    return Resumption(recorded, run_dir, checkpoint)


def _asked(folder: str, recorded: RecordedConfig) -> RunError:
    """Return the question whether the user knows the writer of a run folder, whose configuration would be obeyed."""
    named = policy_keys.orders(recorded.tree)
    would = f" (here {policy_keys.listed(named)})" if named else ""
    is_changed = recorded.author is Author.changed and copy_of(recorded.file) is not None
    back = f" {restoring(recorded.file)}" if is_changed else ""
    return RunError(
        f"{recorded.file} {recorded.author.value}.",
        key="resume",
        value=folder,
        cause=f"A resumed run obeys it: it decides what code runs, which files, programs and services are used{would}.",
        remedy="If you know who wrote or changed it, add trust=true: the run then writes it anew, as yours. To use "
        f"only its policy: rlrun.eval, or policy.path=FOLDER in a run of your own.{back}",
        exit_status=ExitStatus.bad_input,
    )


def quoted(value: str) -> str:
    """Return a value of an override, which may have any characters."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_config(file: Path) -> RecordedConfig:
    """Read the configuration that a run wrote. Raises RunError if it is damaged, or was not written by a run."""
    try:
        text = read_text(file)
        tree = parse_yaml(text)
        if not isinstance(tree, dict):
            raise ValueError("It is no mapping of keys.")
        unresolved = next(_unresolved(tree), None)
    except (OSError, ValueError) as error:
        raise RunError(
            f"The configuration of the run, {file}, cannot be read.",
            cause=str(error),
            remedy=restoring(file),
            exit_status=ExitStatus.bad_input,
        ) from error
    if unresolved is not None:
        raise RunError(
            f"No run wrote this value of '{unresolved[0]}' into {file}.",
            key=unresolved[0],
            value=policy_keys.shown(unresolved[1]),
            cause="A run records values, and neither ${…}, which would read them from elsewhere, nor ???.",
            remedy=f"Write the value itself. Or: {restoring(file)}",
            exit_status=ExitStatus.bad_input,
        )
    return RecordedConfig(file, tree, origin_of(file), tree, own_mark.author_of(text))


def restoring(file: Path) -> str:
    """Return what restores the configuration of a run or of a policy."""
    copy = copy_of(file)
    if copy is None:
        return f"Copy {file.name} again from where it is whole, or start anew with the arguments of the run."
    return f"Restore the copy that is whole: cp {shlex.quote(str(copy))} {shlex.quote(str(file))}"


def _unresolved(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and text of each value that OmegaConf would replace."""
    if isinstance(value, str) and ("${" in value or value == "???"):
        yield path, value
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _unresolved(item, f"{path}.{policy_keys.shown(key)}".lstrip("."))


def _without(tree: dict[str, Any], path: list[str]) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {key: value for key, value in tree.items() if key != head}
    below = tree.get(head)
    return tree | {head: _without(below, rest)} if isinstance(below, dict) else tree
