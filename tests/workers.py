"""Starts the workers of a plan, for tests that need no session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlrun.cluster.launch import Machines
from rlrun.config.schema import RunConfig
from rlrun.controller.workers import Workers
from rlrun.placement.plan import Plan
from rlrun.system.telemetry import Telemetry
from rlrun.watchdog.watchdog import Watchdog


def start_workers(config: RunConfig, plan: Plan, roles: Sequence[str], run_dir: Path) -> Workers:
    """Start the plan's workers of `roles` on whatever machines the configuration names."""
    watchdog = Watchdog(config, run_dir, Telemetry("driver/0"))
    return Machines(config).start(config, plan, roles, run_dir, watchdog)
