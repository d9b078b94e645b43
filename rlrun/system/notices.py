"""Notices: warnings of a worker that goes on, each shown once in the driver's console.

It is a module of its own, since every room below the workers may have something to tell, and only the workers know the
driver. `Telemetry.status` carries the notices to the watchdog.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)
_told: dict[str, None] = {}  # of this process, in their order


def notice(text: str) -> None:
    """Tell a sentence with its cause and what to do; a process tells each once."""
    if text not in _told:
        _told[text] = None
        logger.warning("%s", text)  # in the worker's own log, too


def notices() -> tuple[str, ...]:
    """Return the notices of this process."""
    return tuple(_told)
