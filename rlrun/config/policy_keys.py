"""The keys that a policy's folder may set: what the policy needs to act, and nothing that names code or a place.

Those of the schema are listed here. Of the section of its simulator, and of its kind, it may set numbers, booleans,
enums and what `bounds.named` declares: other texts of a kind may be files, programs or modules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from rlrun.config.bounds import names_of
from rlrun.config.open_schema import schema_with
from rlrun.config.registry import POLICIES, REGISTRIES, SIMULATORS
from rlrun.config.sealing import Section
from rlrun.system.errors import ExitStatus, RunError

OF_A_POLICY = {
    *("name", "rollout.precision", "evaluation.temperature", "serve.instruction", "serve.replan_steps"),
    *("env.simulator", "env.activity", "env.controlled", "env.cameras", "env.image_size", "env.proprio"),
    *("env.max_control_steps", "env.action_hz", "env.physics_hz", "env.reward", "env.reward_potential", "env.renderer"),
    *("policy.kind", "policy.num_action_chunks", "policy.use_proprio", "policy.value_hidden_sizes"),
}
_BEGAN_WITH = "policy.path"
_TRACKERS = "logging."
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\S*")
_MAX_TEXT = 500  # characters
_MAX_SHOWN = 100
_SHOWN = 5  # keys that a sentence names


@dataclass(frozen=True)
class _Leaf:
    """One key of the file with its value. kind: the key belongs to the section of the chosen simulator or policy."""

    path: str
    value: Any
    is_plain: bool = False  # of numbers, booleans and enums
    is_named: bool = False  # declared by `named`
    is_of_kind: bool = False
    is_default: bool = False

    @property
    def may_come(self) -> bool:
        return self.path in OF_A_POLICY or (self.is_of_kind and (self.is_plain or self.is_named))

    @property
    def is_choice(self) -> bool:
        """Return whether the key chooses a simulator, a policy or an algorithm."""
        return self.path in {registry.key for registry in REGISTRIES}

    @property
    def is_told(self) -> bool:
        """Return whether the user should know that it is left out: it names code, a place, a service, or is unknown."""
        if self.is_default or self.value in (None, [], {}) or self.path == "output_dir":
            return False
        if any(_MODULE.fullmatch(text) for text in _texts(self.value)) or self.path.startswith(_TRACKERS):
            return True
        return not (self.is_plain or self.is_named or self.is_choice)


def of_policy(
    file: Path, tree: dict[str, Any], folder: Path, given: Collection[str]
) -> tuple[dict[str, Any], str | None]:
    """Return what of the configuration in a policy's folder may be used, and a sentence on what was left out, if any.

    folder: of the policy; it stands for the one that the run began with, whose sizes are the same. given: keys that the
    user sets; what the file says of them does not matter. Raises RunError for code that the policy would need to act,
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
        elif leaf.may_come:
            _put(kept, leaf.path, leaf.value)
        elif leaf.is_told:
            left_out.append(leaf.path)
    return kept, _sentence(file, left_out)


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value


def orders(tree: dict[str, Any]) -> list[str]:
    """Return the keys of a recorded configuration that name code, places, programs or services."""
    return [leaf.path for leaf in _leaves(schema_with(), tree, set()) if leaf.is_told]


def listed(keys: Sequence[str]) -> str:
    """Return the first keys as part of a sentence. Example: "callbacks, logging.wandb and 3 more"."""
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def _sentence(file: Path, left_out: list[str]) -> str | None:
    if not left_out:
        return None
    return (
        f"{file} was not written by a run of yours: what the policy needs to act is taken from it, and not "
        f"{listed(left_out)}; trust=true would take all of it."
    )


def shown(text: object) -> str:
    """Return a text of a file from elsewhere as a terminal may show it, and not all of a long one."""
    whole = str(text) if str(text).isprintable() else ascii(text)
    return whole if len(whole) <= _MAX_SHOWN else f"{whole[:_MAX_SHOWN]}…"


def is_plain(text: str) -> bool:
    """Return whether a text is a name or a sentence: no module:ATTRIBUTE, address or path out of a folder."""
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
    hints, named, defaults = get_type_hints(section), names_of(section), section()
    for key, value in tree.items():
        path, hint = f"{prefix}{shown(key)}", hints.get(key)
        if isinstance(hint, type) and issubclass(hint, Section) and isinstance(value, dict):
            yield from _leaves(hint, value, chosen, f"{path}.")
        elif hint is None or (isinstance(hint, type) and issubclass(hint, Section)):
            yield _Leaf(path, value)  # of a newer rlrun, or of a kind that is not installed
        else:
            is_of_kind = any(path.startswith(f"{one}.") for one in chosen)
            default = getattr(defaults, key)
            is_default = value == (default.name if isinstance(default, Enum) else default)
            yield _Leaf(path, value, _is_plain_type(hint), key in named, is_of_kind, is_default)


def _is_plain_type(hint: Any) -> bool:
    """Return whether a key holds numbers, booleans or choices only."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    if parts:
        return all(_is_plain_type(part) for part in parts)
    return isinstance(hint, type) and issubclass(hint, (int, float, Enum))


def _refuse_orders(file: Path, leaf: _Leaf) -> None:
    """Raise RunError if the policy could not act as its author meant without something that a folder must not name."""
    for text in _texts(leaf.value) if leaf.may_come or leaf.is_of_kind or leaf.is_choice else ():
        if _MODULE.fullmatch(text):
            module = text.partition(":")[0]
            raise _refused(file, leaf.path, text, f"It names the module {shown(module)}, whose code would run.")
        if leaf.may_come and not is_plain(text):
            raise _refused(file, leaf.path, text, "It is no plain name, and could lead to another place.")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _refused(file: Path, key: str, value: str, cause: str) -> RunError:
    return RunError(
        f"What {file} says is not obeyed, since no run of yours wrote it.",
        key=key,
        value=shown(value),
        cause=f"{cause} A policy's folder is data.",
        remedy=f"If the folder is yours, add trust=true. Else set {key}=… yourself, to what is installed here.",
        exit_status=ExitStatus.bad_input,
    )
