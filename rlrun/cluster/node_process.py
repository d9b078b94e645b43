"""Ray on this node as a supervised child process: its command line, its environment, its end with all its children.

Ray sees no SIGTERM of a scheduler: the run needs it until the last checkpoint is saved. If this process dies, the
kernel kills `ray start`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlrun.cluster import ray_address
from rlrun.cluster.membership import admits, is_listening, joined
from rlrun.placement.node_environment import FREEING_MS, MANY_NODES, NICENESS, setting
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.machine_load import num_cores
from rlrun.system.network import SENTINEL, free_port, port_holder
from rlrun.system.process_io import SHIELDED_SIGNALS, signals_held
from rlrun.watchdog.sentinel import SentinelProcess

_POLL_S = 0.2
_MAX_REFUSALS = 3  # refused connections in a row after which the head has ended
_SHARED_MEMORY = "/dev/shm"
_HEALTH_PERIOD_S = 1.0  # period and timeout of Ray's health checks
_AGENT_PORTS = (
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "metrics-export-port",
)
_CLIENT_PORT = "ray-client-server-port"  # on the head only
_KILL_WAIT_S = 10.0
_NUM_LAST_LINES = 12
_RAY_STARTUP_TIMEOUT = "The current node timed out during startup"  # Ray's limit of 30 s is too short on a busy node
_LIBC = ctypes.CDLL(None, use_errno=True)  # opened before any fork
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


_HEAD_STATES = {  # by what `is_listening` says
    True: "listens, but Ray has not started there",
    False: "refuses connections: Ray does not run there",
    None: "does not answer",
}


class Head:
    """Probe of the head node, used a few times a second once the head has started (`wait`).

    On the head itself it always counts as running: Ray is a supervised child process there.
    """

    def __init__(self, address: str, is_here: bool):
        """address: as "10.77.0.1:6379". is_here: whether this node is the head."""
        self._address = address
        self._is_here = is_here
        self._refusals = 0

    @property
    def is_running(self) -> bool:
        """Probe the head once. A head that does not answer counts as running, since the link may be cut."""
        is_refused = not self._is_here and is_listening(self._address) is False
        self._refusals = self._refusals + 1 if is_refused else 0
        return not is_refused

    @property
    def has_ended(self) -> bool:
        """Whether the head has refused several connections in a row."""
        return self._refusals >= _MAX_REFUSALS

    def wait(self, deadline_s: float, is_stopped: Callable[[], bool]) -> None:
        """Wait until the head has a node of its own, or `is_stopped`.

        Before that, Ray may be started on the head a second time (`NodeProcess.wait_joined`): its port then refuses for
        seconds, which would count as the end of the head. Raises RunError at the deadline, with the state of the head,
        and if the head rejects the token.
        """
        end = time.monotonic() + deadline_s
        while not self._is_here and not is_stopped() and not (is_admitted := admits(self._address)):
            if is_admitted is False:
                raise ray_address.refused(self._address)
            if time.monotonic() > end:
                state = _HEAD_STATES[is_listening(self._address)]
                raise RunError(
                    f"The head node has not started after {deadline_s:g} s.",
                    "cluster.address",
                    self._address,
                    cause=f"{self._address} {state}.",
                    remedy="Start the head, and read its output. If it runs, open its port in the firewall.",
                    exit_status=ExitStatus.placement,
                )
            time.sleep(_POLL_S)


@dataclass(frozen=True)
class NodeSettings:
    """The settings of Ray on this node.

    Example: NodeSettings("sim-0", "10.77.0.2", "10.77.0.1:6379", False, "/tmp/x", None, 2**29, 8, None, 10.0)
    """

    name: str
    address: str  # of this node
    head: str  # host:port, with a numeric host
    is_head: bool
    temp_dir: str
    spill_dir: str | None  # None: below temp_dir
    object_store_bytes: int
    num_accelerators: int
    ports: str | None  # "20000-20999"; None: any free ports
    lost_after_s: float


def ray_start_command(settings: NodeSettings) -> list[str]:
    """Return the command `ray start --block …`. Raises RunError for an invalid range of ports."""
    words = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    if settings.is_head:
        words += ["--head", f"--port={settings.head.rpartition(':')[2]}", "--include-dashboard=false", "--no-monitor"]
    else:
        words += [f"--address={settings.head}"]
    words += [
        f"--node-ip-address={settings.address}",
        f"--node-name={settings.name}",
        f"--temp-dir={settings.temp_dir}",
        f"--object-store-memory={settings.object_store_bytes}",
        f"--num-cpus={num_cores()}",
        f"--num-gpus={settings.num_accelerators}",
        "--include-log-monitor=false",  # workers log to files; the driver does not print their output
    ]
    if settings.spill_dir is not None:
        words.append(f"--object-spilling-directory={settings.spill_dir}")
    services = (*_AGENT_PORTS, *([_CLIENT_PORT] if settings.is_head else []))
    if settings.ports is None:
        # Ray's defaults for these two are fixed ports, which a second job on the node could not use.
        fixed = [name for name in services if name in ("dashboard-agent-listen-port", _CLIENT_PORT)]
        return words + [f"--{name}={free_port()}" for name in fixed]
    first, last = parse_ports(settings.ports, len(services))
    words += [f"--{name}={first + i}" for i, name in enumerate(services)]
    return [*words, f"--min-worker-port={first + len(services)}", f"--max-worker-port={last}"]


def ray_environment(settings: NodeSettings) -> dict[str, str]:
    """Return the environment variables of Ray's processes, which the workers inherit.

    A node that does not answer is lost after `lost_after_s`; Ray's default is 65 s.
    """
    threshold = max(1, round(settings.lost_after_s / (2 * _HEALTH_PERIOD_S)))
    milliseconds = round(1000 * _HEALTH_PERIOD_S)
    values = [
        setting("RAY_AUTH_MODE", "token"),
        setting(MANY_NODES, 1),
        setting("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", 0),
        setting("RAY_free_objects_period_milliseconds", FREEING_MS),
        setting("RAY_event_stats", 0),
        setting("RAY_task_events_report_interval_ms", 0),
        setting(NICENESS, os.environ.get(NICENESS, "0")),
        setting("RAY_health_check_initial_delay_ms", milliseconds),
        setting("RAY_health_check_period_ms", milliseconds),
        setting("RAY_health_check_timeout_ms", milliseconds),
        setting("RAY_health_check_failure_threshold", threshold),
    ]
    return {variable.name: variable.value for variable in values}


def parse_ports(ports: str, num_services: int) -> tuple[int, int]:
    """Return the first and last port of "20000-20999". Raises RunError if that is no range, or too small."""
    first, dash, last = ports.partition("-")
    is_range = dash and first.isdigit() and last.isdigit() and int(first) >= 1024 and int(last) < 2**16
    if not is_range or int(last) - int(first) < num_services + 16:
        raise RunError(
            f"'{ports}' is no range of ports that is large enough.",
            "node.ports",
            ports,
            cause=f"Ray takes {num_services} for its services and one for each worker process.",
            remedy="Write a range of some hundred ports from 1024 on, as 20000-20999.",
        )
    return int(first), int(last)


def check_ports(settings: NodeSettings) -> None:
    """Raise RunError if another process holds a port that the configuration gives to Ray on this node."""
    wanted = [(int(settings.head.rpartition(":")[2]), "cluster.address")] if settings.is_head else []
    services = len(_AGENT_PORTS) + settings.is_head
    if settings.ports is not None:
        first, _ = parse_ports(settings.ports, services)
        wanted += [(port, "node.ports") for port in range(first, first + services)]
    for port, key in wanted:
        holder = port_holder(port)
        if holder is not None:
            raise RunError(
                f"Port {port} of {settings.name}, which Ray needs, is taken by {holder}.",
                key,
                settings.head if key == "cluster.address" else settings.ports,
                cause="Two processes cannot listen on one port.",
                remedy=f"End it (ss -ltnp 'sport = :{port}'), or set another port in {key}, the same on every node.",
                exit_status=ExitStatus.placement,
            )


def check_shared_memory(object_store_bytes: int) -> None:
    """Raise RunError if the object store does not fit into shared memory: Ray would use a slow disk instead."""
    free = shutil.disk_usage(_SHARED_MEMORY).free
    if free < object_store_bytes:
        raise RunError(
            f"Ray's object store does not fit into {_SHARED_MEMORY} of {os.uname().nodename}.",
            "cluster.object_store_bytes",
            object_store_bytes,
            cause=f"{free} bytes are free there.",
            remedy=f"mount -o remount,size={2 * object_store_bytes} {_SHARED_MEMORY} (containers: --shm-size), "
            "or a smaller store, which spills earlier.",
            exit_status=ExitStatus.placement,
        )


class NodeProcess:
    """The process `ray start --block`. `close` ends it with all its children.

    Its output is in `start.log` in the temporary folder. It ends when this process dies for any reason.
    """

    def __init__(self, settings: NodeSettings, head: Head):
        self.settings = settings
        self.head = head
        self._log = Path(settings.temp_dir) / "start.log"
        folders = [folder for folder in (settings.temp_dir, settings.spill_dir) if folder is not None]
        self._sentinel = SentinelProcess(settings.address, folders)  # outside Ray, which it outlives
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # `close` finds orphans as children of this process
        self._process = self._start()

    def _start(self) -> subprocess.Popen:
        with signals_held(*SHIELDED_SIGNALS), self._log.open("ab") as stream:
            return subprocess.Popen(
                ray_start_command(self.settings),
                env=os.environ | ray_environment(self.settings) | {SENTINEL: self._sentinel.where},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 (one system call)
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """Whether Ray still runs on this node."""
        return self._process.poll() is None

    def wait_joined(self, deadline_s: float, is_stopped: Callable[[], bool]) -> None:
        """Wait until this node is part of the cluster, or the head has ended, since the head's command may be short.

        Raises RunError with Ray's last lines if Ray ends, or at the deadline.
        """
        end = time.monotonic() + deadline_s
        is_second = False
        while not is_stopped() and not self.head.has_ended:
            if not self.head.is_running:
                time.sleep(_POLL_S)
                continue
            if not self.is_alive and not is_second and _RAY_STARTUP_TIMEOUT in self._log.read_text(errors="replace"):
                self._process = self._start()
                is_second = True
            if not self.is_alive:
                raise self.ended_error("Ray did not start")
            if self.settings.name in joined(self.settings.head):
                return
            if time.monotonic() > end:
                raise self.ended_error(f"Ray has not started within {deadline_s:g} s")
            time.sleep(_POLL_S)

    def ended_error(self, what: str) -> RunError:
        """Return the error after Ray has ended, with its last lines."""
        lines = self._log.read_text(errors="replace").splitlines()[-_NUM_LAST_LINES:]
        return RunError(
            f"{what} on node {self.settings.name} ({self.settings.address}).",
            cause="Its last lines were:\n" + "\n".join(lines),
            remedy=f"Read the logs in {self.settings.temp_dir}, which is kept until the next start on this node.",
            exit_status=ExitStatus.worker_lost,
        )

    def close(self) -> None:
        """End the sentinel, and kill the processes of `ray start`; none of them needs a graceful shutdown."""
        self._sentinel.close()
        end = time.monotonic() + _KILL_WAIT_S
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < end:
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=_POLL_S)
        self._process.wait(timeout=_KILL_WAIT_S)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")
