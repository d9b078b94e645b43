"""SGLang's launch gate as the last barrier before weights are read: all ranks there, free memory told, then opened.

Versions without a gate start as they always did; then only rlrun's own barrier, before the engine starts, holds.
"""

from __future__ import annotations

import http.client
import logging
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from rlrun.rollout.sglang.host_check import argument_names, version
from rlrun.system.ports import LOOPBACK, free_port

logger = logging.getLogger(__name__)

ARGUMENT = "gated_launch_port"
LOOK_S = 0.2
REQUEST_S = 5.0
QUERY = ("nvidia-smi", "--query-gpu=index,memory.free", "--format=csv,noheader,nounits")


@contextmanager
def gated(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments to start with, while the gate is watched. They hold ARGUMENT where this version has one."""
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
    """`stopped` says that the engine runs, or failed."""
    while not stopped.wait(LOOK_S):
        if _asked("GET", "/health", port):
            logger.info("%d ranks at the gate; free before the model: %s", num_ranks, free_memory())
            _asked("POST", "/gate/activate", port)
            return


def free_memory() -> str:
    """Of every GPU that a rank could use, without opening it; of the host where there is none."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=REQUEST_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"host {psutil.virtual_memory().available / 2**30:.1f} GiB"
    rows = [line.split(",") for line in done.stdout.splitlines()]
    return ", ".join(f"GPU {index.strip()} {float(mib) / 1024:.1f} GiB" for index, mib in rows)


def _asked(method: str, path: str, port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=REQUEST_S)
    try:
        connection.request(method, path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False  # the first rank is not there yet
    finally:
        connection.close()
