"""The machines of a run, as a session sees them: what there is, whether it is fit, and the start of workers on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rlrun.config.schema import RunConfig
from rlrun.controller.workers import Workers
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan
from rlrun.watchdog.watchdog import Watchdog


class Machines(Protocol):
    """Implemented by `rlrun.cluster.launch.Machines`: this process, a private Ray, or a running cluster."""

    inventory: Inventory

    def require_fitness(self, config: RunConfig) -> list[str]:
        """Measure the nodes; returns warnings. Raises RunError where they are not fit for the run."""

    def start(
        self,
        config: RunConfig,
        plan: Plan,
        roles: Sequence[str],
        run_dir: Path,
        watchdog: Watchdog,
        is_stopped: Callable[[], bool],
    ) -> Workers:
        """Start the plan's workers of `roles`. is_stopped: whether a person or the scheduler asked to stop."""

    def close(self) -> None:
        """Free what `start` has not taken over. Safe to call twice."""
