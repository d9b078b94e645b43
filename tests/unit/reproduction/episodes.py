"""Episodes for tests of reproductions."""

from __future__ import annotations

from rlrun.edges.reports import EpisodeReport


def report(seed: int, success: bool, instruction: str = "turn on the stove") -> EpisodeReport:
    """Return a finished episode."""
    return EpisodeReport(0, seed, success, float(success), float(success), 40, success, not success, False, instruction)
