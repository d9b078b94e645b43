"""An engine behind SGLang's HTTP server on a free loopback port; it ends with its worker."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from rlrun.pipe.client import Deadline
from rlrun.rollout.sglang.engine import EngineFault, Rows, TensorBlock
from rlrun.rollout.sglang.http_client import HttpClient
from rlrun.rollout.sglang.pipe_engine import EngineStart, OwnedEngine
from rlrun.system.ports import LOOPBACK, free_port

LOOK_S = 0.5


class HttpEngine(OwnedEngine):
    """`launch_server` of SGLang in `http_host`. The port has no authentication."""

    def __init__(self, how: EngineStart):
        port = free_port(LOOPBACK)
        self._client = HttpClient(port, how.arguments["tp_size"], how.call.seconds)
        super().__init__("rlrun.rollout.sglang.http_host", how, how.arguments | {"host": LOOPBACK, "port": port})

    def act(self, rows: Rows) -> np.ndarray:
        return self._client.act(rows)

    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        self._client.update(blocks, policy_version)

    def probe(self) -> None:
        self._client.probe()

    def release(self) -> None:
        self._client.release()

    def resume(self) -> None:
        self._client.resume()

    def await_up(self, loading: Deadline) -> None:
        """Wait until a probe is answered; output of the server extends the deadline."""
        while True:
            try:
                self._client.probe()
                return
            except EngineFault:
                self._rpc.check_alive("make", loading)
                time.sleep(LOOK_S)
