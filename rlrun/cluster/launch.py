"""Starts the workers of a run: in this process, on a private Ray, or on a running cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cluster.ray_address import NamedCluster, named_cluster
from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.controller.workers import Workers
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan
from rlrun.placement.this_machine import known_inventory
from rlrun.watchdog.watchdog import Watchdog

if TYPE_CHECKING:
    from rlrun.cluster.ray_nodes import RayNode
    from rlrun.cluster.ray_session import RaySession
    from rlrun.placement.fitting import Fitting


class Machines:
    """The machines that a run may use, and the connection to them. Ray is imported only if it is used.

    Example::

        machines = Machines(config)
        fitting = fit_run(config, machines.inventory)
        workers = machines.start(fitting.config, fitting.plan, ROLES, run_dir, watchdog)
    """

    def __init__(self, config: RunConfig):
        """Join a running cluster and measure its nodes; without one, use the inventory file or this machine."""
        self._connection: RaySession | None = None
        named = named_cluster(config)
        self.remarks: tuple[str, ...] = () if named is None or named.remark is None else (named.remark,)
        self.inventory = self._live(config, named) or known_inventory(config)

    def start(
        self,
        config: RunConfig,
        plan: Plan,
        roles: Sequence[str],
        run_dir: Path,
        watchdog: Watchdog,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Workers:
        """Start the plan's workers of `roles`, which close the connection with them.

        watchdog: supervises every wait. is_stopped: whether a person or the scheduler asked to stop.
        """
        if config.cluster.kind is ClusterKind.local:
            from rlrun.controller.local_workers import LocalWorkers

            return LocalWorkers(config, plan, roles)
        from rlrun.cluster.ray_session import RaySession
        from rlrun.cluster.ray_workers import RayWorkers

        connection = self._connection or RaySession(config, None)
        self._connection = None
        return RayWorkers(config, plan, roles, run_dir, connection, watchdog, is_stopped)

    def preflight(self, fitting: Fitting) -> list[str]:
        """Run the doctor before a run with this plan. Returns warnings.

        Raises RunError (exit status 4) if a check failed.
        """
        from rlrun.cluster.preflight import preflight

        return preflight(fitting, self.inventory, self.nodes())

    def nodes(self) -> list[RayNode]:
        """Return the living nodes of the joined cluster; [] if this machine is used."""
        return self._connection.nodes() if self._connection is not None else []

    def close(self) -> None:
        """Leave the cluster, unless `start` has passed on the connection. Safe to call twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _live(self, config: RunConfig, named: NamedCluster | None) -> Inventory | None:
        if named is None or named.address is None:
            return None
        from rlrun.cluster.probe import live_inventory, require_paths
        from rlrun.cluster.ray_session import RaySession

        self._connection = RaySession(config, named)
        try:
            if "mtu" not in config.doctor.skip:
                require_paths()
            return live_inventory(self._connection.nodes()) if config.placement.inventory is None else None
        except BaseException:
            self.close()
            raise
