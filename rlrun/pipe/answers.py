"""The other end of the pipe: answers one call after another, and tells what fails. Runs in the other interpreter."""

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

from rlrun.pipe.arena import Arena
from rlrun.pipe.wire import VERSION, Channel, WireClosed
from rlrun.system.errors import RunError

TOLD = (RunError, NotImplementedError, ValueError, TypeError, KeyError, RuntimeError, ImportError)
FAULT = "fault"  # what the worker has no name for


def open_channel(connection: int, arena: int, lifeline: int, is_writing_arena: bool) -> Channel:
    """Say hello; all three are file descriptors that the worker made.

    lifeline: read end of a pipe to which nobody writes; its end means that the worker is gone.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2)  # the worker asks for stacks before it kills
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_end_with_worker, args=(lifeline,), daemon=True).start()
    channel = Channel(socket.socket(fileno=connection), Arena(arena), is_writing_arena)
    channel.send({"hello": about()}, None)
    return channel


def about() -> dict[str, Any]:
    """Which interpreter this is."""
    return {
        "wire": VERSION,
        "python": platform.python_version(),
        "executable": sys.executable,
        "numpy": np.__version__,
        "pid": os.getpid(),
    }


def answer_until_closed(channel: Channel, calls: Mapping[str, Callable[..., Any]], fault: type[Exception]) -> None:
    """Answer calls by name until `close`, or until the worker is gone. What is raised is told, and decided there."""
    name = ""
    with contextlib.suppress(WireClosed):  # the worker is gone, and so is the reason to be here
        while name != "close":
            request = channel.receive(None)
            name = request["call"]
            channel.send(_answer(name, calls[name], request.get("arguments", {}), fault), None)


def leave() -> None:
    """End this process without atexit handlers: simulators hang in theirs, and what they hold goes with the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _answer(name: str, call: Callable[..., Any], arguments: dict[str, Any], fault: type[Exception]) -> dict[str, Any]:
    try:
        return {"answer": call(**arguments)}
    except (Exception, SystemExit) as error:  # Isaac leaves by sys.exit too; whatever it is, the worker decides
        logging.getLogger(__name__).error("%s failed", name, exc_info=error)
        return {"error": told(error, fault)}


def told(error: BaseException, fault: type[Exception]) -> dict[str, Any]:
    """An exception as a message; `fault`, and what the worker has no name for, becomes its own fault."""
    known = None if isinstance(error, fault) else next((kind for kind in TOLD if isinstance(error, kind)), None)
    is_named = known is not None or isinstance(error, fault)
    text = str(error) if is_named and type(error) in (known, fault) else f"{type(error).__name__}: {error}"
    message = {"kind": FAULT if known is None else known.__name__, "text": text, "traceback": traceback.format_exc()}
    return message | {"run_error": error} if isinstance(error, RunError) else message


def _end_with_worker(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the worker's end closes, however it ended
    os.killpg(os.getpgrp(), signal.SIGKILL)
