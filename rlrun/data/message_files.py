"""Messages as safetensors files, one per message, written atomically: of recordings, and of demonstrated episodes."""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rlrun.system.local_files import parse_json

SUFFIX = ".safetensors"
Message = TypeVar("Message")


class MessageFileError(Exception):
    """A file cannot be used. path: the file. cause: it is missing, corrupted or of another kind."""

    def __init__(self, path: Path, cause: str):
        super().__init__(path, cause)
        self.path = path
        self.cause = cause


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file atomically."""
    _replace(path, lambda part: part.write_text(json.dumps(content) + "\n", encoding="utf-8"))


def write_message(path: Path, message: Any) -> int:
    """Write one dataclass of arrays and plain values atomically. Returns the size of the file."""
    arrays: dict[str, np.ndarray] = {}
    rest = _flatten(message, "", arrays)
    head = {"kind": type(message).__name__, "rest": json.dumps(rest)}
    _replace(path, lambda part: save_file(arrays, part, metadata=head))
    return path.stat().st_size


def read_message(path: Path, kind: type[Message]) -> Message:
    """Read the message in `path`. Raises MessageFileError if it is missing, truncated or of another kind."""
    with _opened(path) as file:
        head = file.metadata() or {}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if head.get("kind") != kind.__name__:
        raise MessageFileError(path, f"it holds {head.get('kind')!r}, not {kind.__name__}")
    try:
        return _unflatten(kind, parse_json(head["rest"]), "", arrays)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise MessageFileError(path, f"its content is not that of {kind.__name__} ({error!r})") from error


def check_message(path: Path) -> None:
    """Read only the header and check the file's length. Raises MessageFileError."""
    with _opened(path):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except FileNotFoundError as error:
        raise MessageFileError(path, "it is missing") from error
    except (OSError, SafetensorError) as error:
        raise MessageFileError(path, f"it is cut short or damaged ({error})") from error


def _replace(path: Path, write: typing.Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _flatten(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return `value` as JSON types, with its arrays in `arrays` by their path."""
    if isinstance(value, np.ndarray):
        arrays[prefix] = np.ascontiguousarray(value)
        return None
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _flatten(getattr(value, name), f"{prefix}.{name}", arrays) for name in names}
    if isinstance(value, tuple):
        return [_flatten(item, f"{prefix}.{i}", arrays) for i, item in enumerate(value)]
    return value


def _unflatten(hint: Any, rest: Any, prefix: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Rebuild a value of type `hint` from the output of `_flatten`: `rest` and arrays."""
    if prefix in arrays:
        return arrays[prefix]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):  # with None
        (hint,) = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if rest is None:
            return None
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: _unflatten(hints[name], rest[name], f"{prefix}.{name}", arrays) for name in rest})
    if typing.get_origin(hint) is tuple:
        kind = typing.get_args(hint)[0]
        return tuple(_unflatten(kind, item, f"{prefix}.{i}", arrays) for i, item in enumerate(rest))
    return rest
