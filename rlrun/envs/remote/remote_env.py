"""VectorEnv of a simulator in another process: every call has a deadline, every failure a name."""

from __future__ import annotations

import builtins
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlrun.config.errors import RunError
from rlrun.config.exit_status import ExitStatus
from rlrun.config.plain import to_plain
from rlrun.config.schema import EnvConfig
from rlrun.data.messages import ChunkResult, Frames
from rlrun.envs.remote.output import KnownLine, Output
from rlrun.envs.remote.process import SimulatorProcess
from rlrun.envs.remote.wire import WireError
from rlrun.envs.vector_env import SimulatorFault, VectorEnv

logger = logging.getLogger(__name__)

CLOSE_S = 10.0  # for a simulator to close by itself
MESSAGE_S = 60.0  # from the first byte of a message to its last
LOOK_S = 1.0  # how often the output is looked at for signs of progress, while loading


class RemoteEnv(VectorEnv):
    """The rows of `num_envs` envs in a process of interpreter `python`.

    Raises SimulatorFault when the process crashes, sends garbage or stays silent for too long: then its whole
    process group has been killed, and only `close` may still be called. What the simulator itself raises comes
    through as the same type, where it is one of Python's or ours.
    """

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        python: str,
        progress: Callable[[], None] = lambda: None,
        known_lines: Sequence[KnownLine] = (),
    ):
        self.num_envs, self.python = num_envs, python
        self._config, self._progress = config, progress
        self._process: SimulatorProcess | None = SimulatorProcess(python, Output(known_lines))
        self.about = self._receive("hello", "start", config.load_deadline_s, is_loading=True)
        logger.info("simulator in %(executable)s, Python %(python)s, numpy %(numpy)s, process %(pid)d", self.about)
        progress()
        try:
            made = self._call("make", config.load_deadline_s, config=to_plain(config), num_envs=num_envs)
        except ImportError as error:
            self.close()
            raise _lacking(python, error) from error
        except BaseException:
            self.close()
            raise
        self.num_actions, self.num_choices = made["num_actions"], made["num_choices"]
        self.num_proprio, self.num_images = made["num_proprio"], made["num_images"]
        self.action_names = tuple(made["action_names"])
        self.action_low, self.action_high = made["action_low"], made["action_high"]

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        answer = self._call("reset", self._config.call_deadline_s, env_ids=np.asarray(env_ids), seeds=np.asarray(seeds))
        return _frames(answer)

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        answer = self._call("step_chunk", self._config.call_deadline_s, actions=actions, active=active)
        return ChunkResult(frames=_frames(answer.pop("frames")), infos=tuple(answer.pop("infos")), **answer)

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        return self._call("render", self._config.call_deadline_s, env_id=int(env_id), height=height, width=width)

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        return self._call("expert_action", self._config.call_deadline_s, env_ids=np.asarray(env_ids))

    def close(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(WireError):
            self._process.channel.send({"call": "close"}, CLOSE_S)
            self._process.channel.receive(CLOSE_S)
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _call(self, name: str, deadline_s: float, **arguments: Any) -> Any:
        if self._process is None:
            raise RuntimeError("this environment is closed")
        try:
            self._process.channel.send({"call": name, "arguments": arguments}, deadline_s)
        except WireError as error:
            raise self._broken(name, error) from error
        return self._receive("answer", name, deadline_s, is_loading=name == "make")

    def _receive(self, wanted: str, name: str, deadline_s: float, is_loading: bool = False) -> Any:
        """The answer to call `name`; signs of progress before it start the deadline anew."""
        assert self._process is not None
        since = time.monotonic()
        while True:
            left = max(0.0, since + deadline_s - time.monotonic())
            if not self._process.channel.has_message(min(left, LOOK_S) if is_loading else left):
                if is_loading and self._process.last_output > since:  # a booting simulator says what it loads
                    since = time.monotonic()
                    self._progress()
                elif time.monotonic() - since >= deadline_s:
                    raise self._silent(name, deadline_s)
                continue
            try:
                message = self._process.channel.receive(MESSAGE_S)
            except WireError as error:
                raise self._broken(name, error) from error
            if "progress" in message:
                since = time.monotonic()
                self._progress()
            elif "error" in message:
                raise _raised(message["error"])
            elif wanted in message:
                return message[wanted]
            else:
                raise self._broken(name, WireError(f"the answer holds {', '.join(message)}"))

    def _silent(self, name: str, deadline_s: float) -> SimulatorFault:
        assert self._process is not None
        self._process.write_stacks()
        told = self._process.diagnosis()
        self._end()
        key = "load_deadline_s" if name in ("start", "make") else "call_deadline_s"
        return SimulatorFault(
            f"{name}: no answer and no progress for {deadline_s:g} s (env.{key}); the simulator was killed, "
            f"its stacks are in this worker's log{told}"
        )

    def _broken(self, name: str, error: WireError) -> SimulatorFault:
        assert self._process is not None
        text = self._process.end_text()
        self._end()
        return SimulatorFault(f"{name}: {error}; {text}")


def _lacking(python: str, error: ImportError) -> RunError:
    return RunError(
        f"The simulator cannot be imported in {python}.",
        key="placement.nodes",
        value=python,
        cause=str(error),
        remedy=f"Install it there ({python} -m pip install …), or name the interpreter that has it as `python:` of "
        "the simulation node group.",
        exit_status=ExitStatus.placement,
    )


def _frames(plain: dict[str, Any]) -> Frames:
    return Frames(plain["images"], plain["proprio"], tuple(plain["instructions"]))


def _raised(fault: dict[str, Any]) -> Exception:
    """The exception that the simulator's side told of."""
    logger.debug("the simulator's own traceback:\n%s", fault["traceback"])
    kind, text = fault["kind"], fault["text"]
    if kind == RunError.__name__:
        words = (fault["key"], fault["value"], fault["cause"], fault["remedy"])
        return RunError(text, *words, ExitStatus(fault["exit_status"]))
    return SimulatorFault(text) if kind == SimulatorFault.__name__ else getattr(builtins, kind)(text)
