"""SGLang's Engine in a child process behind the pipe. Runs in the interpreter that has SGLang."""

from __future__ import annotations

import http.client
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.pipe.server import exit_process, open_channel, serve_calls
from rlrun.pipe.wire import Channel
from rlrun.rollout.sglang.engine import IDLE_S, EngineFault, Row
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.import_path import question
from rlrun.system.machine_load import host_memory
from rlrun.system.network import LOOPBACK, free_port

logger = logging.getLogger(__name__)

SWITCH = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"
_READ = f"""
import runpy, sys
values = runpy.run_path(sys.argv[1])["envs"]
print(values.{SWITCH}.get() if hasattr(values, "{SWITCH}") else "absent")
"""
_CHILD_S = 60.0
ARGUMENT = "gated_launch_port"
LOOK_S = 0.2
REQUEST_S = 5.0
QUERY = ("nvidia-smi", "--query-gpu=index,memory.free", "--format=csv,noheader,nounits")
_LOOK_S = 0.01


def version() -> str:
    """Return the version of the installed SGLang. Raises ImportError naming the interpreter."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError as error:
        raise ImportError(f"there is no sglang in {sys.executable}") from error


def argument_names() -> set[str]:
    """Return the fields of this version's ServerArgs."""
    from sglang.srt.server_args import ServerArgs

    return set(getattr(ServerArgs, "__struct_fields__", ()) or ServerArgs.__dataclass_fields__)


def known_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that this version has; warn about the others."""
    left_out = sorted(set(arguments) - argument_names())
    if left_out:
        logger.warning("SGLang %s has no argument %s", version(), ", ".join(left_out))
    return {name: value for name, value in arguments.items() if name not in left_out}


def check_switch() -> None:
    """Check in a child process, where SGLang's memory check runs, that SGLang reads the memory switch correctly.

    Raises RunError if it reads another value than was set.
    """
    wanted = os.environ.get(SWITCH)
    if wanted is None:
        return
    package = util.find_spec("sglang")
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    source = next((path for folder in folders if (path := Path(folder) / "srt" / "environ.py").is_file()), None)
    if source is None:
        return
    command = question(sys.executable, _READ, str(source))
    done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_S, check=False)
    read = done.stdout.strip().splitlines()[-1:]
    if read == [str(wanted == "1")]:
        logger.info("SGLang's check of memory balance is %s, in its children too", "on" if wanted == "1" else "off")
        return
    raise RunError(
        "SGLang reads another value of its memory switch than was set.",
        key="placement.roles.rollout",
        value=f"{SWITCH}={wanted}",
        cause=f"A child process reads {read[0] if read else done.stderr.strip()[-200:]!r}.",
        remedy="Remove every SGL_… and SGLANG_… variable from placement.nodes.<group>.environment, or take another "
        "version of SGLang.",
        exit_status=ExitStatus.placement,
    )


@contextmanager
def gated(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Watch the gate inside this context. Yields the server arguments, with ARGUMENT if this version has a gate."""
    if ARGUMENT not in argument_names():
        logger.info("SGLang %s has no launch gate; free before it starts: %s", version(), free_memory())
        yield arguments
        return
    port = free_port(LOOPBACK)
    stopped = threading.Event()
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


def serve(connection: int, arena: int, lifeline: int) -> None:
    """Answer calls until `close`. Arguments are file descriptors made by the rollout worker."""
    channel = open_channel(connection, arena, lifeline, is_writing_arena=False)
    host = EngineHost(channel)
    serve_calls(channel, host.calls, EngineFault)
    exit_process()


class EngineHost:
    """One engine and the calls that it answers."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._engine: Any = None
        self._is_closing = False
        self.calls: dict[str, Callable[..., Any]] = {
            "make": self._make,
            "act": self._act,
            "begin_update": self._begin_update,
            "update": self._update,
            "end_update": self._end_update,
            "probe": self._probe,
            "release": self._release,
            "resume": self._resume,
            "close": self._close,
        }

    def _make(self, arguments: dict[str, Any]) -> dict[str, Any]:
        check_switch()
        from sglang.srt.entrypoints.engine import Engine

        self._channel.send({"progress": 1}, None)
        with gated(known_arguments(arguments)) as wanted:
            self._engine = Engine(**wanted)
        threading.Thread(target=self._end_with_children, daemon=True).start()
        logger.info("weights are updated %s", "in sessions" if self._has_sessions else "one block at a time")
        return {"version": version(), "has_sessions": self._has_sessions}

    def _end_with_children(self) -> None:
        """End this process when one of SGLang's ends, since some calls of SGLang would wait for its answer forever."""
        children = multiprocessing.active_children()
        if children:
            multiprocessing.connection.wait([child.sentinel for child in children])
        if children and not self._is_closing:
            ended = ", ".join(f"{child.name} ({child.exitcode})" for child in children if not child.is_alive())
            logger.error("a process of SGLang has ended: %s", ended)
            os.killpg(os.getpgrp(), signal.SIGKILL)

    @property
    def _has_sessions(self) -> bool:
        """Whether weight updates need begin and end calls, as in newer versions."""
        return hasattr(self._engine, "begin_weight_update")

    def _ask(self, request: Any) -> list[dict[str, Any]]:
        async def first() -> Any:
            return await self._engine.tokenizer_manager.generate_request(request, None).__anext__()

        return self._engine.loop.run_until_complete(first())

    def _act(
        self, input_ids: list[list[int]], images: np.ndarray, proprio: np.ndarray, keys: np.ndarray, temperature: float
    ) -> np.ndarray:
        from sglang.srt.managers.io_struct import EmbeddingReqInput

        rows = [[Row(images[i], proprio[i], int(keys[i]), temperature)] for i in range(len(keys))]
        answers = self._ask(EmbeddingReqInput(input_ids=input_ids, image_data=rows))
        return np.array([answer["embedding"] for answer in answers], np.float32)

    def _probe(self) -> None:
        from sglang.srt.managers.io_struct import EmbeddingReqInput

        self._ask(EmbeddingReqInput(input_ids=[0]))

    def _begin_update(self) -> None:
        if self._has_sessions:
            _check(self._engine.begin_weight_update())

    def _update(
        self, names: list[str], dtypes: list[str], shapes: list[list[int]], offsets: list[int], payload: np.ndarray
    ) -> None:
        raw = torch.from_numpy(payload)
        named = []
        for name, dtype, shape, offset in zip(names, dtypes, shapes, offsets, strict=True):
            kind = getattr(torch, dtype)
            num_bytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
            named.append((name, raw[offset : offset + num_bytes].view(kind).view(shape)))
        _check(self._engine.update_weights_from_tensor(named, flush_cache=False))

    def _end_update(self) -> None:
        if self._has_sessions:
            _check(self._engine.end_weight_update())
        self._flush()

    def _flush(self) -> None:
        """Drop caches of old weights. Repeats until the engine is idle, shortly after its last answer."""
        end = time.monotonic() + IDLE_S
        while not getattr(self._engine.flush_cache(), "success", True):  # old versions return None
            if time.monotonic() > end:
                raise EngineFault(f"SGLang is still not idle {IDLE_S:.0f} s after its last answer")
            time.sleep(_LOOK_S)

    def _release(self) -> None:
        self._flush()  # the next call would crash an engine that is not idle
        self._engine.release_memory_occupation()

    def _resume(self) -> None:
        self._engine.resume_memory_occupation()

    def _close(self) -> None:
        self._is_closing = True
        if self._engine is not None:
            self._engine.shutdown()


def _check(answer: Any) -> None:
    """Raise EngineFault unless SGLang's answer reports success. It is a tuple or an object."""
    success, message = answer if isinstance(answer, tuple) else (answer.success, answer.message)
    if not success:
        raise EngineFault(f"SGLang refused: {message}")
