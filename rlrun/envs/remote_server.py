"""The simulator's end of the pipe: makes the requested environment, and answers one call after another.

Runs under the simulator's own Python. All exceptions of a simulator are sent to the env worker, which decides.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.config.sections import from_dict, load_object, make_findable, put_on_path
from rlrun.config.simulator_spec import SimulatorSpec
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.envs.make import make_here
from rlrun.envs.vector_env import SimulatorFault, VectorEnv
from rlrun.pipe.server import exit_process, open_channel, serve_calls
from rlrun.pipe.wire import Channel
from rlrun.system.process_io import signal_handlers_kept


def serve(connection: int, arena: int, lifeline: int) -> None:
    """Answer calls until `close`. Arguments are file descriptors made by the env worker."""
    channel = open_channel(connection, arena, lifeline, is_writing_arena=True)
    serve_calls(channel, Server(channel).calls, SimulatorFault)
    exit_process()


class Server:
    """One environment and its calls."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._env: VectorEnv | None = None
        self.calls: dict[str, Callable[..., Any]] = {
            "make": self._make,
            "reset": self._reset,
            "step_chunk": self._step_chunk,
            "render": self._render,
            "expert_action": self._expert_action,
            "close": self._close,
        }

    @property
    def _made(self) -> VectorEnv:
        if self._env is None:
            raise RuntimeError("make comes first")
        return self._env

    def _make(
        self, spec: str, packages: dict[str, str], folders: list[str], config: dict[str, Any], num_envs: int
    ) -> dict[str, Any]:
        """Make the environment.

        packages: top modules that the worker has, and the file of each.
        folders: where the worker looks for the user's own modules; here they come behind the packages, too.
        """
        with process_kept():
            put_on_path(folders)
            for name, file in packages.items():
                make_findable(name, file)
            found: SimulatorSpec = load_object(spec)
            sections = {} if found.section is None else {found.name: found.section}
            self._env = env = make_here(found, from_dict(EnvConfig, config, sections), num_envs, self._progress)
        return {
            "spaces": env.spaces,
            "fingerprint": dict(env.fingerprint),
            "largest_reward": None if env.largest_reward is None else float(env.largest_reward),
        }

    def _progress(self) -> None:
        self._channel.send({"progress": 1}, None)

    def _reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        return self._made.reset(env_ids, seeds)

    def _step_chunk(self, actions: np.ndarray, active: np.ndarray | None) -> ChunkResult:
        return self._made.step_chunk(actions, active)

    def _render(self, env_id: int, height: int, width: int) -> np.ndarray:
        return self._made.render(env_id, height, width)

    def _expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        return self._made.expert_action(env_ids)

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()


@contextmanager
def process_kept() -> Iterator[None]:
    """Restore what loading a simulator changes in the process: Isaac takes signals and disables garbage collection."""
    try:
        with signal_handlers_kept(signal.SIGINT, signal.SIGTERM):
            yield
    finally:
        was_registered = faulthandler.unregister(signal.SIGUSR2)  # type: ignore[func-returns-value]  # typeshed errs
        if was_registered:
            faulthandler.register(signal.SIGUSR2)  # workers' stacks are collected by this signal
        gc.enable()  # OmniGibson's objects form cycles: without collection a long run grows until it is killed
