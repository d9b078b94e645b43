"""Output of the child process, logged by the worker, with level and meaning from a table of known lines."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KnownLine:
    """A line that a library is known to print.

    Example: KnownLine(r"carb.windowing-glfw", "there is no display, and none is needed")
    """

    pattern: str  # regular expression, searched in the line
    meaning: str
    remedy: str = ""  # empty: the line is harmless and logged at debug level

    @property
    def is_harmless(self) -> bool:
        return not self.remedy

    @property
    def cause(self) -> str:
        """The explanation in messages. Example: "cause: the GPU's memory is full. Fix: put fewer simulators on it."."""
        return f"cause: {self.meaning}. Fix: {self.remedy}."


@dataclass
class Output:
    """Logger of a child's output, line by line. `causes` has the explanations of known failures, each once.

    noun: name of the printing process; the logger is `rlrun.<noun>`.
    """

    known: Sequence[KnownLine] = ()
    noun: str = "simulator"
    causes: list[str] = field(default_factory=list)

    def log_line(self, line: str) -> None:
        """Log a line; a known failure is logged as an error with its fix."""
        logger = logging.getLogger(f"rlrun.{self.noun}")
        failure = self._known(line)
        if failure is None:
            logger.info("%s", line)
        elif failure.is_harmless:
            logger.debug("%s (harmless: %s)", line, failure.meaning)
        else:
            logger.error("%s", line)
            if failure.cause not in self.causes:
                self.causes.append(failure.cause)
                logger.error("%s", failure.cause)

    def new_causes(self, lines: Sequence[str]) -> list[str]:
        """Return causes found in the lines of a log file that are not in `causes` yet; log only the lines with one."""
        before = list(self.causes)
        for line in lines:
            failure = self._known(line)
            if failure is not None and not failure.is_harmless:
                self.log_line(line)
        return [cause for cause in self.causes if cause not in before]

    def _known(self, line: str) -> KnownLine | None:
        return next((known for known in self.known if re.search(known.pattern, line)), None)
