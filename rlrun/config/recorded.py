"""Finds and reads the configuration that a run wrote beside its checkpoints, and into the policies it exported."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from rlrun.config import provenance
from rlrun.config.former_keys import moved, without_harmless
from rlrun.config.provenance import CHECKPOINTS, POLICY_CONFIG, Author, Origin, copy_of, origin_of
from rlrun.config.registry import POLICIES, REGISTRIES, SIMULATORS, schema_with
from rlrun.config.sections import AUTO, Section, auto_names, demonstration_names, names_of
from rlrun.system.errors import CONFIG, ExitStatus, RunError
from rlrun.system.local_files import parse_yaml, read_text
from rlrun.system.text import first_of

OF_A_POLICY = {
    *("name", "rollout.precision", "evaluation.temperature", "serve.instruction", "serve.replan_steps"),
    *("env.simulator", "env.image_size", "env.max_control_steps", "env.action_hz", "env.renderer"),
    *("policy.kind", "policy.num_action_chunks", "policy.use_proprio", "policy.value_hidden_sizes"),
}
_BEGAN_WITH = "policy.path"
_TRACKERS = "logging."
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\S*")
_RANGE = re.compile(r"\d+:\d+")
_MAX_TEXT = 500  # characters
_MAX_SHOWN = 100
_SHOWN = 5  # keys that a sentence names
_OF_THE_RUN: Mapping[str, Sequence[str]] = {  # where and how the user's own run trained; [] is the whole section
    "output_dir": [],
    "node": [],
    "record": [],
    "replay": [],
    "cluster": ["address", "temp_dir", "store_port"],
    "evaluation": ["checkpoint", "server", "server_timeout_s"],
}


@dataclass(frozen=True)
class _Leaf:
    """One key of the file with its value."""

    path: str
    value: Any
    is_plain: bool = False  # of numbers, booleans and enums
    is_named: bool = False  # declared by `named`
    is_of_kind: bool = False  # it belongs to the section of the chosen simulator or policy
    is_default: bool = False
    is_for_demonstrations: bool = False  # no policy needs it

    @property
    def may_be_used(self) -> bool:
        return self.path in OF_A_POLICY or (self.is_of_kind and (self.is_plain or self.is_named))

    @property
    def is_choice(self) -> bool:
        """Return whether the key chooses a simulator, a policy or an algorithm."""
        return self.path in {registry.key for registry in REGISTRIES}

    @property
    def is_reported(self) -> bool:
        """Return whether the user should know that it is left out: it names code, a place, a service, or is unknown."""
        if self.is_default or self.value in (None, [], {}) or self.path == "output_dir":
            return False
        if any(_MODULE.fullmatch(text) for text in _texts(self.value)) or self.path.startswith(_TRACKERS):
            return True
        return not (self.is_plain or self.is_named or self.is_choice)


def of_policy(
    file: Path, tree: dict[str, Any], folder: Path, given: Collection[str]
) -> tuple[dict[str, Any], str | None]:
    """Return the keys that may be used of the configuration in a policy's folder, and a remark on the others, if any.

    folder: of the policy; it stands for the one that the run began with, whose sizes are the same. given: keys that the
    user sets; their values in the file do not matter. Raises RunError for code that the policy would need to act,
    and for a name that leads out of its place.
    """
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    for leaf in _leaves(schema_with(), tree, _chosen(tree, given)):
        if leaf.path in given:
            continue
        _refuse_orders(file, leaf)
        if leaf.path == _BEGAN_WITH:
            _put(kept, leaf.path, None if leaf.value is None else str(folder))
        elif leaf.may_be_used:
            _put(kept, leaf.path, leaf.value)
        elif leaf.is_reported:
            left_out.append(leaf.path)
    return kept, _sentence(file, left_out)


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value


def orders(tree: dict[str, Any]) -> list[str]:
    """Return the keys of a recorded configuration that name code, places, programs or services."""
    return [leaf.path for leaf in _leaves(schema_with(), tree, set()) if leaf.is_reported]


def _sentence(file: Path, left_out: list[str]) -> str | None:
    if not left_out:
        return None
    return (
        f"{file} was not written by a run of yours: what the policy needs to act is taken from it, and not "
        f"{first_of(left_out, _SHOWN)}; trust=true would take all of it."
    )


def shown(text: object) -> str:
    """Return a text of a file from elsewhere as a terminal may show it, and not all of a long one."""
    whole = str(text) if str(text).isprintable() else ascii(text)
    return whole if len(whole) <= _MAX_SHOWN else f"{whole[:_MAX_SHOWN]}…"


def is_plain(text: str) -> bool:
    """Return whether a text is a name or a sentence: no module:ATTRIBUTE, address or path out of a folder.

    A range of numbers, as "0:40", is plain as well.
    """
    if _RANGE.fullmatch(text):
        return len(text) <= _MAX_TEXT
    is_inside = not text.startswith(("/", "~")) and ".." not in re.split(r"[/\\]", text)
    return text.isprintable() and len(text) <= _MAX_TEXT and ":" not in text and is_inside


def _chosen(tree: dict[str, Any], given: Collection[str]) -> set[str]:
    """Return the sections of the simulator and the kind of policy that the file names. Example: {"env.libero"}."""
    chosen = set()
    for registry in (SIMULATORS, POLICIES):
        name = registry.in_tree(tree)
        if name is not None and registry.key not in given:
            chosen.add(f"{registry.parent}.{name}")
    return chosen


def _leaves(section: type, tree: dict[Any, Any], chosen: set[str], prefix: str = "") -> Iterator[_Leaf]:
    hints = get_type_hints(section)
    named = names_of(section)
    demonstrations = demonstration_names(section)
    defaults = section()
    for key, value in tree.items():
        path = f"{prefix}{shown(key)}"
        hint = hints.get(key)
        if isinstance(hint, type) and issubclass(hint, Section) and isinstance(value, dict):
            yield from _leaves(hint, value, chosen, f"{path}.")
        elif hint is None or (isinstance(hint, type) and issubclass(hint, Section)):
            yield _Leaf(path, value)  # of a newer rlrun, or of a kind that is not installed
        else:
            is_of_kind = any(path.startswith(f"{kind}.") for kind in chosen)
            default = getattr(defaults, key)
            is_default = value == (default.name if isinstance(default, Enum) else default)
            is_plain_type = _is_plain_type(hint) or (key in auto_names(section) and _is_number_or_auto(value))
            for_demonstrations = key in demonstrations
            yield _Leaf(path, value, is_plain_type, key in named, is_of_kind, is_default, for_demonstrations)


def _is_number_or_auto(value: Any) -> bool:
    return value is None or value == AUTO or isinstance(value, (int, float))


def _is_plain_type(hint: Any) -> bool:
    """Return whether a key holds numbers, booleans or choices only."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    if parts:
        return all(_is_plain_type(part) for part in parts)
    return isinstance(hint, type) and issubclass(hint, (int, float, Enum))


def _refuse_orders(file: Path, leaf: _Leaf) -> None:
    """Raise RunError if the policy could not act as its author meant without something that a folder must not name."""
    is_needed = leaf.may_be_used or leaf.is_of_kind or leaf.is_choice
    for text in _texts(leaf.value) if is_needed and not leaf.is_for_demonstrations else ():
        if _MODULE.fullmatch(text):
            module = text.partition(":")[0]
            raise _refused(file, leaf.path, text, f"It names the module {shown(module)}, whose code would run.")
        if leaf.may_be_used and not is_plain(text):
            raise _refused(file, leaf.path, text, "It is no plain name, and could lead to another place.")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _refused(file: Path, key: str, value: str, cause: str) -> RunError:
    return RunError(
        f"{key} in {file} is refused: the file was not written by a run of yours.",
        key=key,
        value=shown(value),
        cause=f"{cause} A policy's folder is data.",
        remedy=f"If the folder is yours, add trust=true. Else set {key}=… yourself, to what is installed here.",
        exit_status=ExitStatus.bad_input,
    )


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
        """Return the configuration for a program that uses the run's policy, which is in `folder`.

        Of the user's own run, or if it is trusted, all keys that do not concern training only; else see `of_policy`.
        Removed keys are left out, if the policy acts the same without them.
        """
        present = without_harmless(schema_with(), self.tree)
        if self.author is not Author.own and not is_trusted:
            tree, remark = of_policy(self.file, present, folder, given)
            return replace(self, tree=tree, remark=remark)
        kept = {key: value for key, value in present.items() if _OF_THE_RUN.get(key) != []}
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
    recorded = [place / POLICY_CONFIG, place / "policy" / POLICY_CONFIG]
    if (place / CONFIG).is_file() and not (place / "config.json").is_file():
        recorded.insert(0, place / CONFIG)
    beside = [parent.parent / CONFIG for parent in (place, *place.parents[:2]) if parent.name == CHECKPOINTS]
    config_file = next((file for file in [*recorded, *beside] if file.is_file()), None)
    if config_file is None:
        return None
    holds_policy = place if (place / "config.json").is_file() else place / "policy"
    return read_config(config_file).of_policy(holds_policy, is_trusted, given)


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
    """Read the folder that `resume=folder` names: a run folder, its checkpoints folder, or one checkpoint.

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
        raise _unknown_author(folder, recorded)
    return Resumption(recorded, run_dir, checkpoint)


def _unknown_author(folder: str, recorded: RecordedConfig) -> RunError:
    """Return the question whether the user knows the writer of a run folder, whose configuration would be obeyed."""
    named = orders(recorded.tree)
    would = f" (here {first_of(named, _SHOWN)})" if named else ""
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
        tree = moved(tree)
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
            f"'{unresolved[0]}' in {file} is an interpolation or ???; recorded values are literal.",
            key=unresolved[0],
            value=shown(unresolved[1]),
            cause="A run records values, and neither ${…}, which would read them from elsewhere, nor ???.",
            remedy=f"Write the value itself. Or: {restoring(file)}",
            exit_status=ExitStatus.bad_input,
        )
    return RecordedConfig(file, tree, origin_of(file), tree, provenance.author_of(text))


def restoring(file: Path) -> str:
    """Return the remedy that restores the configuration of a run or of a policy."""
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
            yield from _unresolved(item, f"{path}.{shown(key)}".lstrip("."))


def _without(tree: dict[str, Any], path: list[str]) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {key: value for key, value in tree.items() if key != head}
    below = tree.get(head)
    return tree | {head: _without(below, rest)} if isinstance(below, dict) else tree
