"""Reads the headers of safetensors files, without values and without torch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TypeVar

from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import parse_json

T = TypeVar("T")
COPY = "It is damaged or was not copied completely: copy it again."
MAX_HEADER_BYTES = 100_000_000  # the format's own limit


def parameters_in(folder: Path) -> int:
    """Return the count of numbers in a folder's safetensors files; 0 without any. Raises RunError for a damaged one."""
    return sum(prod(shape) for file in _weight_files(folder) for shape in _shapes_in(file).values())


def named_parameters_in(folder: Path) -> dict[str, int]:
    """Return the counts by tensor name. Raises RunError for a damaged file."""
    return {name: prod(shape) for file in _weight_files(folder) for name, shape in _shapes_in(file).items()}


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _shapes_in(file: Path) -> dict[str, list[int]]:
    """Return the shapes of a file, whose header is a length (8 bytes) and JSON."""

    def read() -> dict[str, list[int]]:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {size} bytes")
            header = parse_json(stream.read(size).decode())
        return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}

    return readable(file, read)


def readable(file: Path, read: Callable[[], T], remedy: str = COPY) -> T:
    """Return the result of `read`. Raises RunError that names the file if it is damaged.

    remedy: of a file that is whole, and holds what rlrun cannot use.
    """
    try:
        return read()
    except (OSError, ValueError, ArithmeticError, MemoryError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file} cannot be read.",
            key="policy.path",
            value=str(file.parent),
            cause=f"{type(error).__name__}: {error}",
            remedy=remedy,
            exit_status=ExitStatus.bad_input,
        ) from error
