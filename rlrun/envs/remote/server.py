"""The simulator's end of the pipe: makes the environment that it is told, and answers one call after another.

Runs under the simulator's own Python. Whatever a simulator raises is told to the env worker, which decides.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import platform
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlrun.config.errors import RunError
from rlrun.config.plain import from_plain
from rlrun.config.schema import EnvConfig
from rlrun.data.messages import ChunkResult, Frames
from rlrun.envs.make import make_here
from rlrun.envs.remote.arena import Arena
from rlrun.envs.remote.wire import VERSION, Channel, WireClosed
from rlrun.envs.vector_env import SimulatorFault, VectorEnv

TOLD = (RunError, SimulatorFault, NotImplementedError, ValueError, TypeError, KeyError, RuntimeError, ImportError)


def serve(connection: int, arena: int, lifeline: int) -> None:
    """Answer until told to close; all three are file descriptors that the env worker made.

    lifeline: read end of a pipe to which nobody writes; its end means that the env worker is gone.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2)  # the env worker asks for stacks before it kills
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_end_with_worker, args=(lifeline,), daemon=True).start()
    channel = Channel(socket.socket(fileno=connection), Arena(arena), is_writing_arena=True)
    channel.send({"hello": about()}, None)
    with contextlib.suppress(WireClosed):  # the env worker is gone, and so is the reason to be here
        Server(channel).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # simulators hang in their own atexit; what they hold goes with the process


def about() -> dict[str, Any]:
    """Which interpreter this is."""
    return {
        "wire": VERSION,
        "python": platform.python_version(),
        "executable": sys.executable,
        "numpy": np.__version__,
        "pid": os.getpid(),
    }


class Server:
    """One environment and its calls."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._env: VectorEnv | None = None
        self._calls: dict[str, Callable[..., Any]] = {
            "make": self._make,
            "reset": self._reset,
            "step_chunk": self._step_chunk,
            "render": self._render,
            "expert_action": self._expert_action,
            "close": self._close,
        }

    def run(self) -> None:
        """Answer calls until `close`."""
        name = ""
        while name != "close":
            request = self._channel.receive(None)
            name = request["call"]
            self._channel.send(self._answer(name, request.get("arguments", {})), None)

    def _answer(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"answer": self._calls[name](**arguments)}
        except (Exception, SystemExit) as error:  # Isaac leaves by sys.exit too; whatever it is, the worker decides
            logging.getLogger(__name__).error("%s failed", name, exc_info=error)
            return {"error": told(error)}

    @property
    def _made(self) -> VectorEnv:
        if self._env is None:
            raise RuntimeError("make comes first")
        return self._env

    def _make(self, config: dict[str, Any], num_envs: int) -> dict[str, Any]:
        with process_kept():
            self._env = env = make_here(from_plain(EnvConfig, config), num_envs, self._progress)
        return {
            "num_actions": env.num_actions,
            "num_choices": env.num_choices,
            "num_proprio": env.num_proprio,
            "num_images": env.num_images,
            "action_names": list(env.action_names),
            "action_low": env.action_low,
            "action_high": env.action_high,
        }

    def _progress(self) -> None:
        self._channel.send({"progress": 1}, None)

    def _reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> dict[str, Any]:
        return frames_to_plain(self._made.reset(env_ids, seeds))

    def _step_chunk(self, actions: np.ndarray, active: np.ndarray | None) -> dict[str, Any]:
        return result_to_plain(self._made.step_chunk(actions, active))

    def _render(self, env_id: int, height: int, width: int) -> np.ndarray:
        return self._made.render(env_id, height, width)

    def _expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        return self._made.expert_action(env_ids)

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()


@contextmanager
def process_kept() -> Iterator[None]:
    """Undo what loading a simulator does to the process: Isaac takes signals and switches garbage collection off."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        gc.enable()  # OmniGibson's objects form cycles: without it a long run grows until it is killed


def told(error: BaseException) -> dict[str, Any]:
    """An exception as plain data; what the env worker has no name for becomes a SimulatorFault."""
    kind = next((known.__name__ for known in TOLD if isinstance(error, known)), SimulatorFault.__name__)
    text = str(error) if kind == type(error).__name__ else f"{type(error).__name__}: {error}"
    fault = {"kind": kind, "text": text, "traceback": traceback.format_exc()}
    if isinstance(error, RunError):
        value = error.value if isinstance(error.value, (str, int, float, bool, type(None))) else repr(error.value)
        fault |= {"text": error.message, "key": error.key, "value": value, "cause": error.cause}
        fault |= {"remedy": error.remedy, "exit_status": int(error.exit_status)}
    return fault


def frames_to_plain(frames: Frames) -> dict[str, Any]:
    """Arrays stay arrays: the wire carries them."""
    return {"images": frames.images, "proprio": frames.proprio, "instructions": list(frames.instructions)}


def result_to_plain(result: ChunkResult) -> dict[str, Any]:
    """The same for a chunk."""
    arrays = ("rewards", "step_valid", "terminated", "truncated", "success", "q_score", "infra_fault")
    return {
        "frames": frames_to_plain(result.frames),
        "infos": list(result.infos),
        **{name: getattr(result, name) for name in arrays},
    }


def _end_with_worker(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the env worker's end closes, however it ended
    os.killpg(os.getpgrp(), signal.SIGKILL)
