"""One Ray actor per worker, on the node and accelerators of its slot."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
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
from rlrun.config.errors import RunError
from rlrun.config.schema import RunConfig
from rlrun.data.messages import Span, WorkerStatus
from rlrun.placement.plan import Plan, Slot

logger = logging.getLogger(__name__)

_STATUS_S = 1.0  # a worker that takes longer to tell what it does is left out of the console
_CLOSE_S = 5.0
_MAX_SOCKET_PATH = 107  # bytes, of a Unix socket
_SOCKET_IN_TEMP_DIR = "/session_2026-11-21_12-17-36_644775_1234567/sockets/plasma_store"


def _temp_dir(parent: str | None) -> str:
    """A new folder for a private Ray, short enough for the sockets in it."""
    folder = tempfile.mkdtemp(prefix="rlrun-ray-", dir=parent)
    excess = len((folder + _SOCKET_IN_TEMP_DIR).encode()) - _MAX_SOCKET_PATH
    if excess > 0:
        os.rmdir(folder)
        raise RunError(
            f"Ray's temporary folder has a path that is {excess} bytes too long.",
            key="cluster.temp_dir",
            value=parent,
            cause=f"Ray opens Unix sockets in it, whose paths hold at most {_MAX_SOCKET_PATH} bytes",
            remedy="Name a folder with a shorter path, such as /tmp or /data/ray.",
        )
    return folder


class RayProcesses(Processes):
    """Starts a private Ray, or joins the one of `cluster.address`, and stops only what it started."""

    def __init__(self, config: RunConfig, plan: Plan, roles: Sequence[str], run_dir: Path):
        self.sizes = {role: len(plan.of(role)) for role in roles}
        self._config = config
        self._temp_dir: str | None = None
        self._hosts: dict[tuple[str, int], Any] = {}
        try:
            self._connect()
            for role in roles:
                for slot in plan.of(role):
                    self._hosts[role, slot.rank] = self._launch(slot, run_dir)
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
        self._temp_dir = _temp_dir(settings.temp_dir)
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=settings.object_store_bytes,
            _temp_dir=self._temp_dir,
            **quiet,
        )

    def _launch(self, slot: Slot, run_dir: Path) -> Any:
        threads_to_act = self.sizes.get("env", 0) + 1
        options = {
            "num_cpus": 0,
            "name": f"{slot.name}/{os.getpid()}",
            "concurrency_groups": {"work": 1, "status": 1, "act": threads_to_act},
        }
        return ray.remote(**options)(Host).remote(slot, self._config, str(run_dir))

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
