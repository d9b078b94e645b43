"""Opens the processes of a run, in this process or on Ray."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlrun.cluster.processes import Processes
from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.placement.plan import Plan


def start_processes(config: RunConfig, plan: Plan, roles: Sequence[str], run_dir: Path) -> Processes:
    """Start the plan's workers of `roles`; Ray is imported only where it is used."""
    if config.cluster.kind is ClusterKind.local:
        from rlrun.cluster.local import LocalProcesses

        return LocalProcesses(config, plan, roles)
    from rlrun.cluster.ray_processes import RayProcesses

    return RayProcesses(config, plan, roles, run_dir)
