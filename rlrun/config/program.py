"""What an entry point tells its command line about the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlrun.config.sweep import SweepRequest

StartSweep = Callable[["SweepRequest", str | None], int]  # (runs, sbatch file) -> exit status


@dataclass(frozen=True)
class Program:
    """A program `python -m rlrun.<name>`."""

    name: str  # module
    description: str
    positional: str | None  # the key that an argument without "=" sets
    aliases: Mapping[str, str]  # short keys of this program, such as {"checkpoint": "evaluation.checkpoint"}
    resumes: bool  # `resume=RUN` takes the configuration of that run
    uses_policy: bool  # it only uses evaluation.checkpoint, whose run's configuration the arguments change
    reads_inputs: bool  # False: missing policies and datasets are no fault
    sweep: StartSweep | None  # starts the runs of `-m key=a,b`; None: the program has no -m
