"""Queries of nvidia-smi with a time limit.

Without the program, or if it prints that no devices were found, the host has no GPU. A program that fails, hangs, or
prints something else raises `UnansweredError`: the GPUs are then unknown.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

MIB = 1024 * 1024
_NO_DEVICES = "No devices were found"
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?: *(?:MiB|W|%))?")
_MAX_SHOWN = 200  # characters of its words


class UnansweredError(OSError):
    """nvidia-smi exists but gave no valid answer; the message quotes its output.

    is_late: it did not answer in time, as with a driver that hangs.
    """

    def __init__(self, message: str, is_late: bool = False):
        super().__init__(message)
        self.is_late = is_late


def query(fields: Sequence[str], what: str = "gpu", timeout_s: float = 10.0) -> list[list[str]]:
    """Return the cells of each line, in the order of `fields`; [] without nvidia-smi or devices.

    what: "gpu" or "compute-apps". Raises UnansweredError.
    Example: query(["index", "memory.total"]) == [["0", "81920"], ["1", "81920"]], of memory in MiB
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    shown = " ".join(["nvidia-smi", *command[1:]])
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnansweredError(f"{shown} has not answered for {timeout_s:g} s", is_late=True) from error
    except OSError as error:  # another architecture's program, or no right to run it
        raise UnansweredError(f"{program} cannot be run: {error.strerror}") from error
    if _NO_DEVICES in answer.stdout + answer.stderr:
        return []
    if answer.returncode != 0:
        raise UnansweredError(f"{shown} ended with status {answer.returncode}: {_output_text(answer)}")
    cells = parse_cells(answer.stdout, len(fields))
    if cells is None or (what == "gpu" and not cells):
        raise UnansweredError(f"{shown} printed something else than {len(fields)} columns: {_output_text(answer)}")
    return cells


def _output_text(answer: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (answer.stderr + "\n" + answer.stdout).splitlines() if line.strip()]
    words = " ".join(lines)
    return f"'{words[:_MAX_SHOWN]}{'…' if len(words) > _MAX_SHOWN else ''}'" if words else "nothing"


def parse_cells(csv: str, num_fields: int) -> list[list[str]] | None:
    """Return the cells of each line; None if a line has another number of cells."""
    lines = [[cell.strip() for cell in line.split(",")] for line in csv.splitlines() if line.strip()]
    return lines if all(len(line) == num_fields for line in lines) else None


def parse_number(cell: str) -> float | None:
    """Return the number in a cell; None for unknown values, printed as "[N/A]" or "[Not Supported]"."""
    number = _NUMBER.fullmatch(cell)
    return float(number.group(1)) if number else None


def parse_mebibytes(cell: str) -> int | None:
    """Return the bytes of a cell in MiB; None for unknown values."""
    mebibytes = parse_number(cell)
    return None if mebibytes is None else int(mebibytes * MIB)


def major_version(driver: str) -> int | None:
    """Return the major version of a driver; None for text that is no version. Example: 550 of "550.54.15"."""
    first = driver.partition(".")[0]
    return int(first) if first.isdigit() else None
