"""The command line and environment of Ray on a node."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass

from rlrun.config.simulator_spec import FREEING_MS, MANY_NODES, NICENESS, setting
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.machine_load import num_cores
from rlrun.system.network import free_port, holder_of

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


def command_line(settings: NodeSettings) -> list[str]:
    """Return the words of `ray start --block …`. Raises RunError for an invalid range of ports."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
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
        "--include-log-monitor=false",  # logs are files; a run does not repeat them
    ]
    if settings.spill_dir is not None:
        words.append(f"--object-spilling-directory={settings.spill_dir}")
    services = (*_AGENT_PORTS, *([_CLIENT_PORT] if settings.is_head else []))
    if settings.ports is None:
        # Ray's defaults for these two are fixed, and taken for the second job on a node.
        fixed = [name for name in services if name in ("dashboard-agent-listen-port", _CLIENT_PORT)]
        return words + [f"--{name}={free_port()}" for name in fixed]
    first, last = read_ports(settings.ports, len(services))
    words += [f"--{name}={first + i}" for i, name in enumerate(services)]
    return [*words, f"--min-worker-port={first + len(services)}", f"--max-worker-port={last}"]


def environment(settings: NodeSettings) -> dict[str, str]:
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
    return {one.name: one.value for one in values}


def read_ports(ports: str, num_services: int) -> tuple[int, int]:
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
        first, _ = read_ports(settings.ports, services)
        wanted += [(port, "node.ports") for port in range(first, first + services)]
    for port, key in wanted:
        holder = holder_of(port)
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
