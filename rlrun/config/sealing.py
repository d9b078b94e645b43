"""Sealing: after loading, a configuration can be read and sent anywhere, but not changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any, NoReturn, TypeVar


class Section:
    """Base class of every configuration dataclass: fields can be assigned until it is sealed.

    Frozen dataclasses would break Hydra's merging, so the seal is set after loading. The instance stores the seal, so
    pickle, cloudpickle and deepcopy keep it. `dataclasses.replace` returns an unsealed copy.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_sealed"):
            _refuse(f"{type(self).__name__}.{name}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self.__dict__.get("_sealed"):
            _refuse(f"{type(self).__name__}.{name}")
        super().__delattr__(name)


SectionType = TypeVar("SectionType", bound=Section)
NO_KEY = "omegaconf_ignore"  # metadata of a field that is no key in YAML


@dataclass
class OpenSection(Section):
    """A section that chooses a kind from a registry; the settings of the kind are a section below it.

    Example: EnvConfig(simulator="libero", sections={"libero": LiberoConfig(task_ids=[0])})
    """

    sections: dict[str, Any] = field(default_factory=dict, metadata={NO_KEY: True})  # by name of the kind

    def section(self, kind: type[SectionType]) -> SectionType:
        """Return the settings of a kind by their dataclass; sealed defaults if none were given."""
        for section in self.sections.values():
            if isinstance(section, kind):
                return section
        defaults = kind()
        seal(defaults)
        return defaults


def seal(section: Section) -> None:
    """Seal a configuration dataclass and everything below it, in place; sealed parts stay as they are."""
    if section.__dict__.get("_sealed"):
        return
    for one in fields(section):  # type: ignore[arg-type]
        setattr(section, one.name, _sealed(getattr(section, one.name)))
    section.__dict__["_sealed"] = True


def _sealed(value: Any) -> Any:
    if isinstance(value, Section):
        seal(value)
    elif isinstance(value, dict):
        return SealedDict({key: _sealed(item) for key, item in value.items()})
    elif isinstance(value, list):
        return SealedList(_sealed(item) for item in value)
    return value


def _refuse(what: str) -> NoReturn:
    raise FrozenInstanceError(f"the configuration is sealed: {what} cannot be changed while a run uses it")


class SealedList(list):
    """A list that refuses every change, and compares equal to a plain list."""

    def _refuse(self, *_: object) -> NoReturn:
        _refuse("a list")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse  # type: ignore[assignment]
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple:
        return SealedList, (tuple(self),)

    def __deepcopy__(self, memo: dict) -> SealedList:
        return self


class SealedDict(dict):
    """A dict that refuses every change, and compares equal to a plain dict."""

    def _refuse(self, *_: object) -> NoReturn:
        _refuse("a mapping")

    pop = popitem = clear = update = setdefault = _refuse  # type: ignore[assignment]
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> tuple:
        return SealedDict, (tuple(self.items()),)

    def __deepcopy__(self, memo: dict) -> SealedDict:
        return self
