"""An engine behind SGLang's HTTP server, on a free port of the loopback interface; it ends with its worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rlrun.pipe.calls import Deadline
from rlrun.rollout.sglang.engine import Engine, EngineFault, Rows, TensorBlock
from rlrun.rollout.sglang.http_client import HttpClient
from rlrun.rollout.sglang.loopback import HOST, free_port
from rlrun.rollout.sglang.pipe_engine import lacking, start

LOOK_S = 0.5


class HttpEngine(Engine):
    """`launch_server` of SGLang in `http_host`; whoever reaches the port may use it."""

    def __init__(
        self,
        python: str | None,
        arguments: dict[str, Any],
        is_cpu: bool,
        loading: Deadline,
        call: Deadline,
        progress: Callable[[], None],
    ):
        """Raises RunError where SGLang is not installed, EngineFault where it does not start."""
        port = free_port()
        self._client = HttpClient(port, arguments["tp_size"], call.seconds)
        self._process = start(python, "rlrun.rollout.sglang.http_host", is_cpu, loading, progress)
        try:
            self.about = self._process.call("make", loading, arguments=arguments | {"host": HOST, "port": port})
            self._await_up(loading)
        except ImportError as error:
            self.close()
            raise lacking(python, error) from error
        except BaseException:
            self.close()
            raise

    def act(self, rows: Rows) -> np.ndarray:
        return self._client.act(rows)

    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        self._client.update(blocks, policy_version)

    def probe(self) -> None:
        self._client.probe()

    def close(self) -> None:
        self._process.close()

    def _await_up(self, loading: Deadline) -> None:
        """Until a request comes back; the server's output counts as life."""
        while True:
            try:
                self._client.probe()
                return
            except EngineFault:
                self._process.look("make", loading)
                time.sleep(LOOK_S)
