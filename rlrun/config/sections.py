"""Sections of the configuration: frozen dataclasses, the ranges of their keys, and their form as dicts."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields
from enum import Enum
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar, get_args, get_type_hints

from rlrun.system.import_path import is_closed

_put_folders: set[str] = set()  # folders that configurations have put on sys.path
NO_KEY = "omegaconf_ignore"  # metadata of a field that is no key in YAML
_KEY = "rlrun.bounds"
_NAMED = "rlrun.named"
_DEMONSTRATIONS = "rlrun.demonstrations"
_AUTO = "rlrun.auto"
AUTO = "auto"  # the value of a key that the plan chooses


@dataclass(frozen=True)
class RemovedKey:
    """A key of earlier versions, which is refused.

    Example: RemovedKey("Leave it out: the channel authenticates by a token.", harmless=("token",))
    """

    remedy: str
    harmless: tuple[str, ...]  # recorded values without which a policy acts as it did; they are left out


class Section:
    """Base class of every configuration dataclass: fields can be assigned until it is frozen.

    Frozen dataclasses would break Hydra's merging, so instances are frozen after loading. The instance stores that, so
    pickle, cloudpickle and deepcopy keep it. `dataclasses.replace` returns a copy that is not frozen.
    """

    removed: ClassVar[Mapping[str, RemovedKey]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_frozen"):
            _refuse(f"{type(self).__name__}.{name}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self.__dict__.get("_frozen"):
            _refuse(f"{type(self).__name__}.{name}")
        super().__delattr__(name)


SectionType = TypeVar("SectionType", bound=Section)


@dataclass
class KindSection(Section):
    """A section that chooses a kind from a registry; the settings of the kind are a section below it.

    Example: EnvConfig(simulator="libero", sections={"libero": LiberoConfig(task_ids=[0])})
    """

    to_kinds: ClassVar[tuple[str, ...]] = ()  # its keys in earlier versions that the sections of kinds have now

    sections: dict[str, Any] = field(default_factory=dict, metadata={NO_KEY: True})  # by name of the kind

    def section(self, kind: type[SectionType]) -> SectionType:
        """Return the settings of a kind by their dataclass; frozen defaults if none were given."""
        for section in self.sections.values():
            if isinstance(section, kind):
                return section
        defaults = kind()
        freeze(defaults)
        return defaults


def freeze(section: Section) -> None:
    """Freeze a configuration dataclass and everything below it, in place; frozen parts stay as they are."""
    if section.__dict__.get("_frozen"):
        return
    for entry in fields(section):  # type: ignore[arg-type]
        setattr(section, entry.name, _frozen(getattr(section, entry.name)))
    section.__dict__["_frozen"] = True


def _frozen(value: Any) -> Any:
    if isinstance(value, Section):
        freeze(value)
    elif isinstance(value, dict):
        return FrozenDict({key: _frozen(item) for key, item in value.items()})
    elif isinstance(value, list):
        return FrozenList(_frozen(item) for item in value)
    return value


def _refuse(what: str) -> NoReturn:
    raise FrozenInstanceError(f"the configuration is frozen: {what} cannot be changed while a run uses it")


class FrozenList(list):
    """A list that refuses every change, and compares equal to a plain list."""

    def _refuse(self, *_: object) -> NoReturn:
        _refuse("a list")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse  # type: ignore[assignment]
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple:
        return FrozenList, (tuple(self),)

    def __deepcopy__(self, memo: dict) -> FrozenList:
        return self


class FrozenDict(dict):
    """A dict that refuses every change, and compares equal to a plain dict."""

    def _refuse(self, *_: object) -> NoReturn:
        _refuse("a mapping")

    pop = popitem = clear = update = setdefault = _refuse  # type: ignore[assignment]
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> tuple:
        return FrozenDict, (tuple(self.items()),)

    def __deepcopy__(self, memo: dict) -> FrozenDict:
        return self


@dataclass(frozen=True)
class Range:
    """The range low <= value <= high, without its open ends. Example: Range(0, 1, is_low_open=True) is (0, 1]."""

    low: float = -math.inf
    high: float = math.inf
    is_low_open: bool = False
    is_high_open: bool = False

    def holds(self, value: float) -> bool:
        """Return whether `value` lies inside; NaN and infinities do not."""
        above = self.low < value if self.is_low_open else self.low <= value
        below = value < self.high if self.is_high_open else value <= self.high
        return math.isfinite(value) and above and below

    def __str__(self) -> str:
        words = []
        if self.low > -math.inf:
            words.append(f"{'above' if self.is_low_open else 'at least'} {self.low:.12g}")
        if self.high < math.inf:
            words.append(f"{'below' if self.is_high_open else 'at most'} {self.high:.12g}")
        return " and ".join(words) or "a finite number"


FINITE = Range()
COUNT = Range(1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, is_low_open=True)
SHARE = Range(0, 1)
POSITIVE_SHARE = Range(0, 1, is_low_open=True)
BELOW_ONE = Range(0, 1, is_high_open=True)
OPEN_SHARE = Range(0, 1, is_low_open=True, is_high_open=True)


def bounded(default: Any, allowed: Range, auto: bool = False) -> Any:
    """Return a dataclass field with a range, for a number or each number of a list; None is always allowed.

    auto: the key also takes the word `auto`: the plan chooses its number, see rlrun/placement/choices.py.
    """
    return _field(default, {_KEY: allowed, _AUTO: auto})


def named(default: Any) -> Any:
    """Return a dataclass field of a plain name or text, or a list of them: nothing that a program would open or import.

    A policy's folder may set it, see rlrun/config/recorded.py; other texts only the user may.
    """
    return _field(default, {_NAMED: True})


def for_demonstrations(default: Any) -> Any:
    """Return a dataclass field that only the recording of demonstrations reads.

    A policy acts without it: what a policy's folder says there is left out, and refuses nothing.
    """
    return _field(default, {_DEMONSTRATIONS: True})


def bounds_of(section: type) -> Iterator[tuple[str, Range]]:
    """Yield name and range of each bounded field of a configuration dataclass."""
    for entry in fields(section):
        if _KEY in entry.metadata:
            yield entry.name, entry.metadata[_KEY]


def auto_names(section: type) -> tuple[str, ...]:
    """Return the fields of a configuration dataclass that take the word `auto`."""
    return tuple(entry.name for entry in fields(section) if entry.metadata.get(_AUTO))


def names_of(section: type) -> set[str]:
    """Return the fields of a configuration dataclass that `named` made."""
    return {entry.name for entry in fields(section) if _NAMED in entry.metadata}


def demonstration_names(section: type) -> set[str]:
    """Return the fields of a configuration dataclass that `for_demonstrations` made."""
    return {entry.name for entry in fields(section) if _DEMONSTRATIONS in entry.metadata}


def _field(default: Any, metadata: dict[str, Any]) -> Any:
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def to_dict(value: Any) -> Any:
    """Return sections as dicts and enums as their values. Example: to_dict(EnvConfig())["simulator"] == "embedded"."""
    if isinstance(value, Section):
        return {field.name: to_dict(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return value


def as_yaml(value: Any) -> str:
    """Return a default as written in YAML. Example: None -> "null", [1, 2] -> "[1, 2]"."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return f"[{', '.join(as_yaml(item) for item in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "{}" if value == {} else str(value)


def from_dict(kind: type[SectionType], data: dict[str, Any], sections: Mapping[str, type[Section]] = {}) -> SectionType:
    """Return the frozen section from the result of `to_dict`. Raises KeyError, ValueError or TypeError for other data.

    sections: the dataclasses of an KindSection's kinds, by name.
    """
    hints = get_type_hints(kind)
    unknown = set(data) - set(hints)
    if unknown:
        raise KeyError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    values = {name: _typed(hints[name], value) for name, value in data.items()}
    if issubclass(kind, KindSection):
        values["sections"] = {
            name: from_dict(sections[name], content) for name, content in data.get("sections", {}).items()
        }
    section = kind(**values)
    freeze(section)
    return section


def _typed(hint: Any, value: Any) -> Any:
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, dict):
            return from_dict(kind, value)
        if isinstance(kind, type) and issubclass(kind, Enum) and value is not None:
            return [kind(item) for item in value] if isinstance(value, list) else kind(value)
    return value


def load_object(location: str) -> Any:
    """Return the attribute of "module:ATTRIBUTE". Raises ImportError, AttributeError, or an exception of the module."""
    module, _, attribute = location.partition(":")
    value = import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def put_on_path(folders: list[str]) -> None:
    """Let this process import modules from these folders: behind packages, before folders of earlier configurations."""
    new = [folder for folder in folders if folder not in sys.path and not is_closed(os.path.realpath(folder))]
    end = len(sys.path)
    at = next((place for place, folder in enumerate(sys.path) if folder in _put_folders), end)
    sys.path[at:at] = new
    _put_folders.update(new)


def own_folders() -> list[str]:
    """Return the folders of the user's own modules on `sys.path`: those of configurations, and the working folder."""
    here = os.path.realpath(os.curdir)
    return [entry for entry in sys.path if entry in _put_folders or os.path.realpath(entry) == here]


def folder_of(location: str, folders: list[Path]) -> Path | None:
    """Return the first of `folders` with the module of "module:ATTRIBUTE"; None: it is installed, or missing."""
    top = location.partition(":")[0].partition(".")[0]
    for folder in folders:
        if (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file():
            return folder.resolve()
    return None


def file_of(location: str) -> str:
    """Return the file of the top module or package of an imported "module:ATTRIBUTE"."""
    return str(getattr(import_module(top_of(location)), "__file__", None) or "")


def found_file(location: str) -> str:
    """Return the same without importing it; "": it is not found here."""
    spec = find_spec(top_of(location))
    return "" if spec is None else spec.origin or ""


def top_of(location: str) -> str:
    """Return the top module or package of "module:ATTRIBUTE"."""
    return location.partition(":")[0].partition(".")[0]


class _FileFinder(MetaPathFinder):
    """Finds one top module in its file, without its neighbours."""

    def __init__(self, name: str, file: str):
        self._name = name
        self._file = file

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of the module, or of the package with its folder; None: another one is looked for."""
        if name != self._name:
            return None
        file = Path(self._file)
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(name, file, submodule_search_locations=inside)


def make_findable(name: str, file: str) -> None:
    """Let this process import a top module from its file, without its neighbours. Does nothing if it finds one already.

    For a simulator's own interpreter, which must not get the libraries of the trainer's Python.
    """
    if file and find_spec(name) is None:
        sys.meta_path.append(_FileFinder(name, file))
