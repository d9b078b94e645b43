"""Differences of two policy folders, as changes of the first one: which field moved the number between two versions."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.data.checksums import CHECKSUMS
from rlrun.reproduction.conventions import REMOVED, Change, Edit, Field
from rlrun.system.local_files import read_json

_ABSENT = object()
_MAX_SHOWN = 60  # characters of a value


def changes_between(folder: Path, other: Path) -> list[Change]:
    """Return a change for each field of a JSON file in which the folders differ, and for each other file.

    Fields that only one of the folders has count as well; statistics and weights differ by their bytes.
    """
    return [*_of_fields(folder, other), *_of_files(folder, other)]


def _of_fields(folder: Path, other: Path) -> Iterator[Change]:
    for file in sorted(folder.glob("*.json")):
        beside = other / file.name
        if file.name == CHECKSUMS or not beside.is_file():
            continue
        for path, value in _differences(read_json(file), read_json(beside)):
            field = Field(file.name, path)
            text = "removed" if value is REMOVED else json.dumps(value)
            yield Change(str(field), text[:_MAX_SHOWN], edits=(Edit(field, value),))


def _differences(one: Any, two: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield path and other value of each leaf in which two contents differ."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for name in sorted(one.keys() | two.keys()):
            yield from _differences(one.get(name, _ABSENT), two.get(name, _ABSENT), (*path, name))
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two) and _has_mappings(one):
        for index, (left, right) in enumerate(zip(one, two, strict=True)):
            yield from _differences(left, right, (*path, index))
    elif one is not two and one != two:
        yield path, REMOVED if two is _ABSENT else two


def _has_mappings(values: list[Any]) -> bool:
    return any(isinstance(value, Mapping) for value in values)


def _of_files(folder: Path, other: Path) -> Iterator[Change]:
    """Yield a change for each file beside the JSON files whose bytes differ: statistics, tokenizers, weights."""
    for file in sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".json"):
        beside = other / file.name
        if beside.is_file() and not filecmp.cmp(file, beside, shallow=False):
            yield Change(file.name, f"that of {other.name}", edits=(Edit(Field(file.name, ()), beside),))
