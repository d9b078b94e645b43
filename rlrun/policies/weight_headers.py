"""Reads the headers of safetensors files, without values and without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TypeVar

from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

T = TypeVar("T")


def parameters_in(folder: Path) -> int:
    """Return the count of numbers in a folder's safetensors files; 0 without any. Raises RunError for a damaged one."""
    return sum(_parameters_of(file) for file in sorted(folder.glob("*.safetensors")))


def _parameters_of(file: Path) -> int:
    """Return the count of numbers in a safetensors file, whose header is a length (8 bytes) and JSON."""
    shapes = readable(file, lambda: _shapes_in(file))
    return sum(prod(shape) for shape in shapes)


def _shapes_in(file: Path) -> list[list[int]]:
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return [tensor["shape"] for name, tensor in header.items() if name != "__metadata__"]


def readable(file: Path, read: Callable[[], T]) -> T:
    """Return the result of `read`. Raises RunError that names the file if it is damaged."""
    try:
        return read()
    except (OSError, ValueError, OverflowError, MemoryError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file} cannot be read.",
            key="policy.path",
            value=str(file.parent),
            cause=f"{type(error).__name__}: {error}",
            remedy="It is damaged or was not copied completely: copy it again.",
            exit_status=ExitStatus.bad_input,
            row="policy-config-unreadable",
        ) from error
