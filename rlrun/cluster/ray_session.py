"""One connection to Ray: to a running cluster, or to a private Ray that ends with the run."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlrun.placement.node_environment import FREEING_MS, NICENESS
from rlrun.system.network import SENTINEL

# Suppresses a notice about a behaviour that no worker here relies on.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# A failed request may have several errors, of which the first is reported; Ray would print the others later.
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
# Its handler of signals in C would end the driver at SIGTERM; Python's faulthandler writes the stacks of crashes.
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
# The trajectories of one step leave the object store before those of the next one arrive.
os.environ.setdefault("RAY_free_objects_period_milliseconds", str(FREEING_MS))
# By default Ray's processes measure each of their handlers, for logs that nothing here reads.
os.environ.setdefault("RAY_event_stats", "0")
# By default Ray's processes send their tasks to the head once a second, for a dashboard that does not run.
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
# By default Ray's workers run at niceness 15, and get almost no CPU time beside another busy process.
os.environ.setdefault(NICENESS, "0")

import ray

from rlrun.cluster import ray_address
from rlrun.cluster.membership import admits, is_listening, no_head
from rlrun.cluster.ray_address import NamedCluster
from rlrun.cluster.ray_nodes import HealthCheck, RayNode, ray_nodes
from rlrun.cluster.waits import warn_if_slow
from rlrun.config.schema import RunConfig
from rlrun.placement.this_machine import find_accelerators
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import (
    LockedFolder,
    TemporaryFolder,
    folder_for_ray,
    open_parent,
    remove_stale,
    unfit_folder,
)
from rlrun.system.process_io import SHIELDED_SIGNALS, PreemptedError, signal_handlers_kept, signals_held
from rlrun.system.run_queue import QueueTime, descendants, queue_seconds, scheduled_seconds
from rlrun.system.telemetry import mark_alive
from rlrun.watchdog.sentinel import SentinelProcess
from rlrun.watchdog.supervised import RAY_FOLDER_PREFIX, end_processes, gcs_address

NAMESPACE = "rlrun"
_KEY = "cluster.temp_dir"
logger = logging.getLogger(__name__)

_OWN_TIMEOUT = "timed out during startup"
_JOIN_S = 60.0  # Ray's own limit
_HEAD_WAIT = "RAY_gcs_server_port_wait_time_s"  # how long Ray waits for its head's port: 30 s by default
_RETRY_S = 1.0
_WORKS_S = 0.1  # seconds of computing or of waiting for a core in which a process that starts makes progress
_MAX_SOCKET_PATH = 107  # bytes in the path of a Unix socket
_SOCKET_IN_TEMP_DIR = "/session_2026-11-21_12-17-36_644775_1234567/sockets/plasma_store"


class RaySession:
    """Joins the cluster that `named` gives the address of, or starts a private Ray. `close` ends only a private Ray.

    Example::

        with RaySession(config, named_cluster(config)) as session:
            print([node.name for node in session.nodes()])
    """

    def __init__(self, config: RunConfig, named: NamedCluster | None):
        self._folder: LockedFolder | None = None
        self._health_check: HealthCheck | None = None
        self._sentinel: SentinelProcess | None = None
        quiet = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if named is not None and named.address is not None:
                with _own_signals():
                    _join_named(named, quiet)
                self._health_check = HealthCheck(None)
                return
            self._folder = _new_folder(folder_for_ray(config.cluster.temp_dir))
            temp_dir = str(self._folder.inner)
            if config.watchdog.enabled:
                self._sentinel = SentinelProcess("127.0.0.1", [temp_dir])
                os.environ[SENTINEL] = self._sentinel.where  # Ray's processes inherit it, and the workers from them
            with signals_held(*SHIELDED_SIGNALS), _own_signals():
                _start(config, temp_dir, quiet)
            self._health_check = HealthCheck(self._folder.inner / "session_latest" / "logs")
        except BaseException:
            self.close()
            raise

    def nodes(self) -> list[RayNode]:
        """Return the living nodes, head first, then by name, which is the order of accelerator indices."""
        return ray_nodes()

    def check(self, is_urgent: bool = False) -> None:
        """Raise RunError the first time that Ray's services are found to have ended; see `HealthCheck.check`."""
        if self._health_check is not None:
            self._health_check.check(is_urgent)

    @property
    def is_private(self) -> bool:
        """Return whether Ray ends with this session."""
        return self._folder is not None

    @property
    def is_alive(self) -> bool:
        """Return whether Ray can still end workers."""
        return ray.is_initialized() and (self._health_check is None or self._health_check.answers())

    def close(self) -> None:
        """Leave or end Ray. Safe to call twice."""
        if self._folder is not None:
            # Ray itself would wait for services that hear no signal, or have ended.
            end_processes(str(self._folder.path))
        if ray.is_initialized():
            ray.shutdown()
        if self._sentinel is not None:
            os.environ.pop(SENTINEL, None)
            self._sentinel.close()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def __enter__(self) -> RaySession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of this process. While Ray starts, its own one ends the process at SIGTERM, by SystemExit."""
    with signal_handlers_kept(signal.SIGINT, signal.SIGTERM):
        try:
            yield
        except SystemExit as end:
            if end.code != signal.SIGTERM:
                raise
            raise PreemptedError from None


def _join_named(named: NamedCluster, quiet: dict) -> None:
    """Join the named cluster. Raises RunError, which names the variable if one named the cluster."""
    assert named.address is not None
    try:
        _join(named.address, quiet)
    except RunError as error:
        raise named.with_cause(error) from error


def _join(address: str, quiet: dict) -> None:
    reason = no_head(address)
    if reason is not None:
        raise _not_joined(address, reason)
    ray_address.use_known(address)
    if admits(address) is False:
        raise ray_address.refused(address)
    try:
        with warn_if_slow(f"Ray's cluster at {address}", _JOIN_S):
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _not_joined(address, f"{type(error).__name__}: {error}") from error


def _not_joined(address: str, cause: str) -> RunError:
    return RunError(
        f"No Ray cluster can be joined at {address}.",
        key="cluster.address",
        value=address,
        cause=cause,
        remedy="Start Ray on every node, the one that runs this command among them: scripts/start_head.sh, then "
        "scripts/start_worker.sh on the others. Or unset cluster.address and RAY_ADDRESS to use this machine only.",
        exit_status=ExitStatus.placement,
    )


def _start(config: RunConfig, temp_dir: str, quiet: dict) -> None:
    """Start a private Ray. Its processes get the deadline in time in which they can run. Raises RunError.

    Ray gives its node up after 30 s and leaves the processes: they are joined when they are ready. Ray starts anew
    once, and only if its head has ended meanwhile.
    """
    ray_address.use_new()
    limit_s = config.cluster.start_deadline_s
    os.environ.setdefault(_HEAD_WAIT, str(int(limit_s)))
    deadline = _StartDeadline(limit_s)
    options = {
        "include_dashboard": False,
        "num_gpus": find_accelerators().num_visible,
        "object_store_memory": config.cluster.object_store_bytes,
        "_temp_dir": temp_dir,
        **quiet,
    }
    with warn_if_slow("start of Ray on this machine", limit_s), _alive_while_children_work():
        for is_last in (False, True):
            try:
                ray.init(address="local", **options)
                return
            except Exception as error:  # Ray raises Exception itself
                if _OWN_TIMEOUT in str(error) and _join_starting(temp_dir, deadline, quiet):
                    return
                may_start_anew = _head_has_ended(temp_dir) and not is_last and not deadline.is_over()
                end_processes(temp_dir)
                if not may_start_anew:
                    raise _not_started(limit_s, error) from error
                logger.warning("the head of Ray ended while it started, and Ray starts anew: %s", error)


def _not_started(limit_s: float, error: Exception) -> RunError:
    return RunError(
        "Ray did not start on this machine.",
        key="cluster.start_deadline_s",
        value=limit_s,
        cause=f"{type(error).__name__}: {error}",
        remedy="Look at the machine's load, memory and disks (`python -m rlrun.doctor`). If it is only busy, "
        "set cluster.kind=local, which needs no Ray, or raise cluster.start_deadline_s.",
        exit_status=ExitStatus.stalled,
    )


class _StartDeadline:
    """The deadline of a start, in time in which the processes of Ray could run."""

    def __init__(self, limit_s: float):
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._queue_time = QueueTime()

    def is_over(self) -> bool:
        now_s = time.monotonic()
        passed_s = now_s - self._began_s
        queued_s = self._queue_time.within("start", passed_s, now_s, lambda: queue_seconds([os.getpid()]))
        return passed_s - queued_s > self._limit_s


def _join_starting(temp_dir: str, deadline: _StartDeadline, quiet: dict) -> bool:
    """Join a private Ray whose processes still start. Returns False if its head has ended, or at the deadline."""
    while (address := gcs_address(temp_dir)) is not None and not _head_has_ended(temp_dir):
        try:
            ray.init(address=address, **quiet)
            return True
        except Exception as error:  # Ray raises Exception itself
            logger.info("Ray at %s is not ready: %s", address, error)
        if deadline.is_over():
            return False
        time.sleep(_RETRY_S)
    return False


def _head_has_ended(temp_dir: str) -> bool:
    """Return whether nothing listens where the private Ray's raylet knows its head, which listens from its start on."""
    address = gcs_address(temp_dir)
    return address is not None and is_listening(address) is False


@contextmanager
def _alive_while_children_work() -> Iterator[None]:
    """Mark this process as alive while its children compute or wait for a core: `ray.init` blocks meanwhile."""
    is_over = threading.Event()

    def mark() -> None:
        worked_s = 0.0
        while not is_over.wait(_RETRY_S):
            before_s = worked_s
            worked_s = scheduled_seconds(descendants(os.getpid()))
            if worked_s > before_s + _WORKS_S:
                mark_alive()

    thread = threading.Thread(target=mark, name="start of Ray", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=2 * _RETRY_S)


def _new_folder(parent: TemporaryFolder) -> LockedFolder:
    """Create a folder for a private Ray, and remove those of killed runs.

    Raises RunError if its path is too long, or if nothing can be made there.
    """
    by = f", which {parent.source} names" if parent.source not in ("", _KEY) else ""
    try:
        for stale in remove_stale([parent.path], RAY_FOLDER_PREFIX):
            logger.info("removed %s, left by a run that is gone", stale)
        folder = LockedFolder(parent.path, RAY_FOLDER_PREFIX)
    except OSError as error:
        raise unfit_folder(parent, error, _KEY) from error
    exposed = open_parent(folder.path)
    if exposed is not None:
        logger.warning("other users can rename the folder of Ray: end that with `chmod +t %s`", exposed)
    excess = len((str(folder.inner) + _SOCKET_IN_TEMP_DIR).encode()) - _MAX_SOCKET_PATH
    if excess > 0:
        folder.close()
        raise RunError(
            f"Ray's temporary folder has a path that is {excess} bytes too long{by}.",
            key=parent.source or _KEY,
            value=parent.path,
            cause=f"Ray opens Unix sockets in it, whose paths hold at most {_MAX_SOCKET_PATH} bytes",
            remedy=f"Name a folder with a shorter path in {_KEY}, such as /tmp or /data/ray.",
        )
    return folder
