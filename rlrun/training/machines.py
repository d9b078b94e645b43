"""The interface of a session to the machines of a run: their inventory, the doctor, and the start of workers."""

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
    remarks: tuple[str, ...]  # sentences for the console: what decided where the run is

    def require_fitness(self, config: RunConfig, roles: Sequence[str]) -> list[str]:
        """Measure the nodes for workers of `roles`. Returns warnings.

        Raises RunError if the nodes are not fit for the run.
        """

    def start(
        self,
        config: RunConfig,
        plan: Plan,
        roles: Sequence[str],
        run_dir: Path,
        watchdog: Watchdog,
        is_stopped: Callable[[], bool],
    ) -> Workers:
        """Start the plan's workers of `roles`. is_stopped: returns whether a person or the scheduler asked to stop."""

    def close(self) -> None:
        """Release the machines, unless `start` has passed them to the workers. Safe to call twice."""
