"""RPC server in the child process, under the child's interpreter: answers one call at a time, reports exceptions."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import platform
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlrun.pipe.wire import VERSION, Arena, Channel, WireClosed
from rlrun.system.errors import RunError
from rlrun.system.process_io import refuse_breakpoints

_FORWARDED_ERRORS = (RunError, NotImplementedError, ValueError, TypeError, KeyError, RuntimeError, ImportError)
_FAULT_KIND = "fault"  # any other exception


def open_channel(connection: int, arena: int, lifeline: int, is_writing_arena: bool) -> Channel:
    """Open the channel to the worker and send the handshake. Arguments are file descriptors made by the worker.

    lifeline: read end of a pipe that the worker never writes to; end of file means that the worker has exited.
    """
    faulthandler.enable()
    refuse_breakpoints("a process that a worker owns")
    faulthandler.register(signal.SIGUSR2)  # the worker requests stacks before it kills this process
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_end_with_worker, args=(lifeline,), daemon=True).start()
    channel = Channel(socket.socket(fileno=connection), Arena(arena), is_writing_arena)
    channel.send({"handshake": interpreter_info()}, None)
    return channel


def interpreter_info() -> dict[str, Any]:
    """Return the versions and the process id of this interpreter."""
    return {
        "wire": VERSION,
        "python": platform.python_version(),
        "executable": sys.executable,
        "numpy": np.__version__,
        "pid": os.getpid(),
    }


def serve_calls(channel: Channel, calls: Mapping[str, Callable[..., Any]], fault: type[Exception]) -> None:
    """Answer calls by name until `close`, or until the worker has ended. Sends exceptions to the worker."""
    name = ""
    with contextlib.suppress(WireClosed):  # the worker has ended
        while name != "close":
            request = channel.receive(None)
            name = request["call"]
            channel.send(_answer(name, calls[name], request.get("arguments", {}), fault), None)


def exit_process() -> None:
    """End this process without atexit handlers: those of simulators hang, and the system frees their resources."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _answer(name: str, call: Callable[..., Any], arguments: dict[str, Any], fault: type[Exception]) -> dict[str, Any]:
    try:
        return {"answer": call(**arguments)}
    except (Exception, SystemExit) as error:  # Isaac Sim calls sys.exit as well; the worker handles all of them
        logging.getLogger(__name__).error("%s failed", name, exc_info=error)
        return {"error": error_message(error, fault)}


def error_message(error: BaseException, fault: type[Exception]) -> dict[str, Any]:
    """Return the message for an exception. `fault` and types that are not forwarded get the kind "fault"."""
    known = (
        None
        if isinstance(error, fault)
        else next((kind for kind in _FORWARDED_ERRORS if isinstance(error, kind)), None)
    )
    is_named = known is not None or isinstance(error, fault)
    text = str(error) if is_named and type(error) in (known, fault) else f"{type(error).__name__}: {error}"
    return {
        "kind": _FAULT_KIND if known is None else known.__name__,
        "text": text,
        "traceback": traceback.format_exc(),
        "run_error": error if isinstance(error, RunError) else None,
    }


def _end_with_worker(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the worker's end closes, even if it was killed
    os.killpg(os.getpgrp(), signal.SIGKILL)
