"""Cross-field checks: what types cannot say is refused here, before anything starts."""

from __future__ import annotations

from rlrun.config.schema import RunConfig


def check(config: RunConfig) -> None:
    """Raise RunError for the first contradiction."""
