"""The Ray cluster that a run joins: by cluster.address, else by RAY_ADDRESS, which Ray's own programs obey as well.

Ray documents two words in place of an address: `local` starts a Ray of its own, and `auto` finds the one that runs on
this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.network import require_ipv4, require_ipv4_name

VARIABLE, KEY = "RAY_ADDRESS", "cluster.address"
LOCAL, AUTO = "local", "auto"
_CURRENT = "ray/ray_current_cluster"  # where Ray writes the address of the last head that started, in RAY_TMPDIR


@dataclass(frozen=True)
class NamedCluster:
    """What names the cluster of a run.

    address: "10.77.0.1:6379"; None: a private Ray on this machine. source: "cluster.address" or "RAY_ADDRESS".
    Example: NamedCluster("10.77.0.1:6379", "RAY_ADDRESS", "RAY_ADDRESS=10.77.0.1:6379: the run joins that Ray")
    """

    address: str | None
    source: str
    remark: str | None = None  # a sentence for the console, where a variable decides

    def explained(self, error: RunError) -> RunError:
        """Add to an error about the cluster that a variable named it, and how to be rid of the variable."""
        if self.source == VARIABLE:
            error.cause = "\n".join(filter(None, [error.cause, f"The address comes from the variable {VARIABLE}."]))
            more = f"If no such cluster is meant: unset {VARIABLE}, and the run starts a Ray of its own."
            error.remedy = "\n".join(filter(None, [error.remedy, more]))
        return error


def named_cluster(config: RunConfig) -> NamedCluster | None:
    """Return the cluster that the configuration or the environment names; None if neither does, or no Ray is used.

    Raises RunError for IPv6, and for `auto` if it is not clear which Ray that is.
    """
    if config.cluster.kind is ClusterKind.local:
        return None
    source = KEY if config.cluster.address else VARIABLE
    given = config.cluster.address or os.environ.get(VARIABLE, "").strip()
    if not given:
        return None
    is_variable = source == VARIABLE
    if given == LOCAL:
        own = f"{VARIABLE}={LOCAL}: the run starts a Ray of its own"
        return NamedCluster(None, source, own if is_variable else None)
    address = _found(source) if given == AUTO else given
    require_ipv4(address, source)
    require_ipv4_name(address.rpartition("/")[2].partition(":")[0], source)
    where = f" at {address}" if given == AUTO else ""
    return NamedCluster(address, source, f"{VARIABLE}={given}: the run joins that Ray{where}" if is_variable else None)


def _found(source: str) -> str:
    """Return the address of the one Ray on this machine, or of the last that started there. Raises RunError."""
    running = running_addresses()
    if len(running) == 1:
        return running[0]
    last = _last_started()
    if last in running:
        return last
    told = (
        f"several run there: {', '.join(running)}" if running else "no Ray runs there, or it is hidden from this user"
    )
    error = RunError(
        f"{source}={AUTO} means the Ray of this machine, and {told}.",
        key=source,
        value=AUTO,
        remedy="Name the address of its head, as train-0:6379, or start Ray first: scripts/start_head.sh.",
        exit_status=ExitStatus.placement,
    )
    raise NamedCluster(None, source).explained(error)


def running_addresses() -> list[str]:
    """Return the addresses of the heads of all Rays that run on this machine, from the options of their raylets."""
    found: dict[str, None] = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        for word in process.info["cmdline"] or () if (process.info["name"] or "").startswith("raylet") else ():
            option, _, value = word.partition("=")
            if option == "--gcs-address" and value:
                found[value] = None
    return list(found)


def _last_started() -> str:
    try:
        return (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / _CURRENT).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
