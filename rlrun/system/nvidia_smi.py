"""What nvidia-smi says of this host's GPUs, never waited for longer than a bound."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

MIB = 1024 * 1024


def query(fields: Sequence[str], what: str = "gpu", timeout_s: float = 10.0) -> list[list[str]]:
    """The cells of each line, in the order of `fields`; what: "gpu" or "compute-apps".

    Empty without nvidia-smi, without a driver or device, and where it does not answer in time (see
    `require_answer`).
    Example: query(["index", "memory.total"]) == [["0", "81920"], ["1", "81920"]], of memory in MiB
    """
    try:
        return require_answer(fields, what, timeout_s)
    except OSError:
        return []


def require_answer(fields: Sequence[str], what: str = "gpu", timeout_s: float = 10.0) -> list[list[str]]:
    """The same. Raises TimeoutError where nvidia-smi is there and does not answer, as with a driver that hangs."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{' '.join(command)} has not answered for {timeout_s:g} s") from error
    return cells(answer.stdout, len(fields)) if answer.returncode == 0 else []


def cells(csv: str, num_fields: int) -> list[list[str]]:
    """Of each line; a line of another form is left out."""
    lines = [[cell.strip() for cell in line.split(",")] for line in csv.splitlines()]
    return [line for line in lines if len(line) == num_fields]


def number(cell: str) -> float | None:
    """None: the driver does not know it, and says "[N/A]"."""
    try:
        return float(cell)
    except ValueError:
        return None


def num_bytes(cell: str) -> int:
    """Of memory in MiB; 0 where the driver does not know it."""
    return int((number(cell) or 0.0) * MIB)
