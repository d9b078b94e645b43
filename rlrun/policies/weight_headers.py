"""What safetensors files say of themselves before a value is read; without torch."""

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
    """Numbers in all safetensors files of a folder; 0: it has none. Raises RunError for a damaged one."""
    return sum(_parameters_of(file) for file in sorted(folder.glob("*.safetensors")))


def _parameters_of(file: Path) -> int:
    """Numbers in a safetensors file: its header is a length (8 bytes) and JSON."""
    shapes = readable(file, lambda: _shapes_in(file))
    return sum(prod(shape) for shape in shapes)


def _shapes_in(file: Path) -> list[list[int]]:
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return [tensor["shape"] for name, tensor in header.items() if name != "__metadata__"]


def readable(file: Path, read: Callable[[], T]) -> T:
    """What `read` returns. Raises RunError naming the file where it is damaged."""
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
