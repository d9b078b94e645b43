"""An engine in a child process behind the pipe; it ends with its worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.pipe.client import ChildProcess, ChildSpec, Deadline, RpcClient
from rlrun.pipe.output import KnownLine, Output
from rlrun.rollout.sglang.engine import Engine, EngineFault, Rows, TensorBlock
from rlrun.system.errors import ExitStatus, RunError

HERE = Path(__file__).parent
HOST = "rlrun.rollout.sglang.engine_host"
KEY = "rollout.sglang.python"
REMEDY = "Set it to the interpreter that has SGLang on the nodes of the rollout workers: docs/sglang.md."
KNOWN_LINES = (
    KnownLine(
        r"memory capacity is unbalanced",
        "a GPU of the tensor-parallel group has less than 90 % of the free memory of another",
        "look for a process that holds memory there (nvidia-smi), or share all GPUs of the group equally",
    ),
    KnownLine(
        r"Subprocess .* crashed with exit code",
        "one of SGLang's own processes has ended, and the others end with it",
        "read its last lines in this worker's log; if there are none, look for the kernel's OOM killer (dmesg)",
    ),
    KnownLine(r"Prefill batch, |Cache flushed", "one line per request"),
    KnownLine(r"(CUDA )?out of memory", "the device memory is full", "lower rollout.sglang.mem_fraction_static"),
)


def engine_spec(is_cpu: bool) -> ChildSpec:
    """Return the spec of the engine host. Its processes find our plug-in, and with `is_cpu` the CPU platform."""
    paths = [str(HERE / "plugin_path")] + ([str(HERE / "cpu_path")] if is_cpu else [])
    return ChildSpec("engine", HOST, KEY, REMEDY, is_worker_writing_arena=True, paths=tuple(paths))


def start(python: str | None, is_cpu: bool, loading: Deadline, progress: Callable[[], None]) -> RpcClient:
    """Start an engine host and wait for its handshake. python: None: the interpreter that runs this."""
    process = ChildProcess(python or sys.executable, engine_spec(is_cpu), Output(KNOWN_LINES, "engine"))
    client = RpcClient(process, "engine", EngineFault, progress)
    client.handshake(loading)
    return client


def lacking(python: str | None, error: ImportError) -> RunError:
    """Return the error for an interpreter that lacks SGLang."""
    return RunError(
        f"SGLang cannot be imported in {python or sys.executable}.",
        key=KEY,
        value=python,
        cause=str(error),
        remedy=f"{REMEDY} `scripts/sglang_environment.py` makes such an environment.",
        exit_status=ExitStatus.placement,
    )


@dataclass(frozen=True)
class EngineStart:
    """Arguments for starting an engine."""

    python: str | None  # None: the interpreter that runs this
    arguments: dict[str, Any]  # of SGLang's ServerArgs
    is_cpu: bool
    loading: Deadline
    call: Deadline  # of a request
    progress: Callable[[], None]  # called at signs of progress while it loads


class PipeEngine(Engine):
    """`Engine` of SGLang in `engine_host`, a process that ends with this object."""

    def __init__(self, how: EngineStart):
        """Raises RunError if SGLang is not installed, EngineFault if the engine does not start."""
        self._deadline = how.call
        self._rpc = start(how.python, how.is_cpu, how.loading, how.progress)
        try:
            self.about = self._rpc.call("make", how.loading, arguments=how.arguments)
        except ImportError as error:
            self.close()
            raise lacking(how.python, error) from error
        except BaseException:
            self.close()
            raise

    def act(self, rows: Rows) -> np.ndarray:
        return self._rpc.call(
            "act",
            self._deadline,
            input_ids=rows.input_ids,
            images=rows.images,
            proprio=rows.proprio,
            keys=rows.keys,
            temperature=rows.temperature,
        )

    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        self._rpc.call("begin_update", self._deadline)
        for block in blocks:
            self._rpc.call(
                "update",
                self._deadline,
                names=[where.name for where in block.slices],
                dtypes=[where.dtype for where in block.slices],
                shapes=[list(where.shape) for where in block.slices],
                offsets=[where.offset for where in block.slices],
                payload=block.payload,
            )
        self._rpc.call("end_update", self._deadline)

    def probe(self) -> None:
        self._rpc.call("probe", self._deadline)

    def release(self) -> None:
        self._rpc.call("release", self._deadline)

    def resume(self) -> None:
        self._rpc.call("resume", self._deadline)

    def close(self) -> None:
        self._rpc.close()
