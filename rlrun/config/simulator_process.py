"""A simulator as whoever starts its process sees it: interpreter, environment variables, packages and output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Decided(Enum):
    plan = "plan"  # decided by the planner, per worker
    node = "node"  # decided on the worker's node, just before its libraries are imported
    cluster = "cluster"  # decided by the process that starts or joins Ray


@dataclass(frozen=True)
class Variable:
    """One row of the table. Example: Variable("OMP_NUM_THREADS", ("actor", "rollout", "env"), Decided.plan, "…")."""

    name: str
    roles: tuple[str, ...]  # roles whose workers get it
    decided: Decided
    reason: str

    def to(self, value: object) -> Setting:
        """Return this variable with a value. Example: variable.to(0).value == "0"."""
        return Setting(self.name, str(value), self.reason)


@dataclass(frozen=True)
class Setting:
    """A variable with its value for one worker. Example: Setting("OMP_NUM_THREADS", "1", "BLAS and …")."""

    name: str
    value: str
    reason: str


def no_log(process_group: int) -> list[str]:
    """Return no lines: for a simulator that prints everything."""
    return []


def no_settings(accelerators: tuple[int, ...], num_cores: int) -> list[Setting]:
    """Return no settings: for a simulator that needs no environment variables."""
    return []


@dataclass(frozen=True)
class ProcessSpec:
    """How a simulator's process is started and read. Read by the env worker that starts it.

    Example: ProcessSpec(needs_own_process=True, has_own_python=True, packages=("omnigibson",))
    """

    needs_own_process: bool = False  # it takes over the process that it runs in
    has_own_python: bool = False  # it is installed under a Python of its own, not under rlrun's
    packages: tuple[str, ...] = ()  # packages whose versions affect results
    variables: tuple[Variable, ...] = ()  # variables that `environment` may set
    # for a worker with these accelerators and its share of the node's cores
    environment: Callable[[tuple[int, ...], int], list[Setting]] = no_settings
    known_lines: tuple[Any, ...] = ()  # rlrun.pipe.output.KnownLine, for lines of its output
    failure_log: Callable[[int], list[str]] = no_log  # (process group) -> lines of a log file, after a failed start
