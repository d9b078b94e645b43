"""Opens the processes of a run, in this process or on Ray."""

from __future__ import annotations

from pathlib import Path

from rlrun.cluster.processes import Processes
from rlrun.config.schema import ClusterKind, RunConfig


def start_processes(config: RunConfig, sizes: dict[str, int], run_dir: Path) -> Processes:
    """Start `sizes[role]` workers of each role; Ray is imported only where it is used."""
    if config.cluster.kind is ClusterKind.local:
        from rlrun.cluster.local import LocalProcesses

        return LocalProcesses(config, sizes)
    from rlrun.cluster.ray_processes import RayProcesses

    return RayProcesses(config, sizes, {}, str(run_dir.resolve()))
