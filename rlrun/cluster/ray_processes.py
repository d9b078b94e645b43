"""One Ray actor per worker, on the node and accelerators of its slot."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

# Ray's token authentication would write a token file into the home folder and lock later clusters to it.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# A notice about a behaviour that no worker here relies on; it would be the first line of every run.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from rlrun.cluster.host import Host
from rlrun.cluster.processes import Pending, Processes
from rlrun.cluster.waits import wait_for
from rlrun.config.schema import RunConfig
from rlrun.data.messages import Span, WorkerStatus

logger = logging.getLogger(__name__)

_STATUS_S = 1.0  # a worker that takes longer to tell what it does is left out of the console
_CLOSE_S = 5.0


class RayProcesses(Processes):
    """Starts a private Ray, or joins the one of `cluster.address`, and stops only what it started."""

    def __init__(self, config: RunConfig, sizes: dict[str, int], environments: dict[str, dict[str, str]], run_dir: str):
        """environments: role -> variables to set in its workers before their libraries are imported."""
        self.sizes = sizes
        self._config = config
        self._temp_dir: str | None = None
        self._hosts: dict[tuple[str, int], Any] = {}
        try:
            self._connect()
            for role, count in sizes.items():
                for rank in range(count):
                    self._hosts[role, rank] = self._launch(role, rank, environments.get(role, {}), run_dir)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        settings = self._config.cluster
        address = settings.address or os.environ.get("RAY_ADDRESS")
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
        if address is not None:
            ray.init(address=address, namespace="rlrun", **quiet)
            return
        self._temp_dir = tempfile.mkdtemp(prefix="rlrun-ray-", dir=settings.temp_dir)
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=settings.object_store_bytes,
            _temp_dir=self._temp_dir,
            **quiet,
        )

    def _launch(self, role: str, rank: int, environment: dict[str, str], run_dir: str) -> Any:
        threads_to_act = self.sizes.get("env", 0) + 1
        options = {
            "num_cpus": 0,
            "name": f"{role}/{rank}/{os.getpid()}",
            "concurrency_groups": {"work": 1, "status": 1, "act": threads_to_act},
        }
        return ray.remote(**options)(Host).remote(role, rank, self._config, environment, run_dir)

    def submit(self, role: str, rank: int, method: str, *arguments: Any) -> Pending:
        values = [argument.value if isinstance(argument, Pending) else argument for argument in arguments]
        return Pending(f"{role}/{rank}", method, self._hosts[role, rank].run.remote(method, *values))

    def converse(self, method: str, arguments: Sequence[tuple], num_parts: int) -> list[tuple[Pending, ...]]:
        ranks = range(len(arguments))
        opened = {}
        for rollout in range(self.sizes["rollout"]):
            members = {rank for rank in ranks if self.rollout_of(rank) == rollout}
            opened[self._hosts["rollout", rollout].open_rendezvous.remote(members)] = f"rollout/{rollout}.open"
        wait_for(opened, "rollout workers open a conversation", self._config.cluster.step_deadline_s)
        answers = []
        for rank in ranks:
            rollout = self.rollout_of(rank)
            host = self._hosts["env", rank].converse.options(num_returns=num_parts)
            refs = host.remote(method, arguments[rank], self._hosts["rollout", rollout], f"rollout/{rollout}")
            parts = refs if num_parts > 1 else [refs]
            answers.append(tuple(Pending(f"env/{rank}", method, ref) for ref in parts))
        return answers

    def wait(self, pendings: Sequence[Pending], subject: str, deadline_s: float) -> list[Any]:
        return wait_for({p.value: f"{p.worker}.{p.method}" for p in pendings}, subject, deadline_s)

    def address(self, role: str, rank: int) -> str:
        ref = self._hosts[role, rank].address.remote()
        return wait_for({ref: f"{role}/{rank}.address"}, "addresses", self._config.cluster.start_deadline_s)[0]

    def statuses(self) -> list[WorkerStatus]:
        return list(self._peek("status").values())

    def spans(self) -> dict[str, list[Span]]:
        return self._peek("spans")

    def _peek(self, method: str) -> dict[str, Any]:
        refs = {getattr(host, method).remote(): f"{role}/{rank}" for (role, rank), host in self._hosts.items()}
        if not refs:
            return {}
        ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=_STATUS_S)
        answers = {}
        for ref in ready:
            try:
                answers[refs[ref]] = ray.get(ref, timeout=_STATUS_S)
            except (RayActorError, RayTaskError, GetTimeoutError) as error:  # whoever waits on it reports it
                logger.debug("%s does not tell its %s: %s", refs[ref], method, error)
        return answers

    def close(self) -> None:
        if ray.is_initialized():
            self._end_workers()
            ray.shutdown()
        if self._temp_dir is not None:
            shutil.rmtree(self._temp_dir, ignore_errors=True)

    def _end_workers(self) -> None:
        closing = [host.run.remote("close") for host in self._hosts.values()]
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for host in self._hosts.values():
            ray.kill(host)
        self._hosts.clear()
