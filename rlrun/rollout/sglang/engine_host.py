"""SGLang's Engine in a child process behind the pipe. Runs in the interpreter that has SGLang."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rlrun.pipe.server import exit_process, open_channel, serve_calls
from rlrun.pipe.wire import Channel
from rlrun.rollout.sglang.engine import IDLE_S, EngineFault
from rlrun.rollout.sglang.gate import gated
from rlrun.rollout.sglang.host_check import check_switch, known_arguments, version
from rlrun.rollout.sglang.row import Row

logger = logging.getLogger(__name__)

_LOOK_S = 0.01


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
