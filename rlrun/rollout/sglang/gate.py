"""SGLang's launch gate: a barrier before weights are read. Logs free memory when all ranks are there, then opens it.

Versions without a gate start directly; then only rlrun's own barrier before the start of the engine holds.
"""

from __future__ import annotations

import http.client
import logging
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlrun.rollout.sglang.host_check import argument_names, version
from rlrun.system.machine_load import host_memory
from rlrun.system.network import LOOPBACK, free_port

logger = logging.getLogger(__name__)

ARGUMENT = "gated_launch_port"
LOOK_S = 0.2
REQUEST_S = 5.0
QUERY = ("nvidia-smi", "--query-gpu=index,memory.free", "--format=csv,noheader,nounits")


@contextmanager
def gated(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Watch the gate inside this context. Yields the server arguments, with ARGUMENT if this version has a gate."""
    if ARGUMENT not in argument_names():
        logger.info("SGLang %s has no launch gate; free before it starts: %s", version(), free_memory())
        yield arguments
        return
    port, stopped = free_port(LOOPBACK), threading.Event()
    watching = threading.Thread(target=_open_when_reached, args=(arguments["tp_size"], port, stopped), daemon=True)
    watching.start()
    try:
        yield arguments | {ARGUMENT: port, "host": LOOPBACK}
    finally:
        stopped.set()


def _open_when_reached(num_ranks: int, port: int, stopped: threading.Event) -> None:
    """Poll the gate until all ranks have reached it, then open it. `stopped`: the engine runs, or failed."""
    while not stopped.wait(LOOK_S):
        if _request("GET", "/health", port):
            logger.info("%d ranks at the gate; free before the model: %s", num_ranks, free_memory())
            _request("POST", "/gate/activate", port)
            return


def free_memory() -> str:
    """Return the free memory of every GPU (without opening it), or of the host if there is none, as text."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=REQUEST_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"host {host_memory().free_bytes / 2**30:.1f} GiB"
    rows = [line.split(",") for line in done.stdout.splitlines()]
    return ", ".join(f"GPU {index.strip()} {float(mib) / 1024:.1f} GiB" for index, mib in rows)


def _request(method: str, path: str, port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=REQUEST_S)
    try:
        connection.request(method, path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False  # the first rank has not reached the gate
    finally:
        connection.close()
