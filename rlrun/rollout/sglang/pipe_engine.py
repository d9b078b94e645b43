"""An engine in a process of its own, spoken to through the pipe; it ends with its worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.pipe.calls import Calls, Deadline
from rlrun.pipe.output import KnownLine, Output
from rlrun.pipe.process import OwnProcess, Tenant
from rlrun.rollout.sglang.engine import Engine, EngineFault, Rows, TensorBlock
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

HERE = Path(__file__).parent
KEY = "rollout.sglang.python"
REMEDY = "It names the interpreter in which SGLang is installed, on the nodes of the rollout workers: docs/sglang.md."
KNOWN_LINES = (
    KnownLine(
        r"memory capacity is unbalanced",
        "a GPU of the tensor-parallel group has under 90 % of the free memory of another",
        "look for a process that holds memory there (nvidia-smi), or share all GPUs of the group alike",
    ),
    KnownLine(
        r"Subprocess .* crashed with exit code",
        "one of SGLang's own processes has ended, and the others follow",
        "read its last words in this worker's log; after none at all, look for the kernel's memory killer (dmesg)",
    ),
    KnownLine(r"Prefill batch, |Cache flushed", "one line per request"),
    KnownLine(r"(CUDA )?out of memory", "the device memory is full", "lower rollout.sglang.mem_fraction_static"),
)


def tenant(module: str, is_cpu: bool) -> Tenant:
    """An engine host of `module`, with our plug-in in all its processes; is_cpu: and the CPU platform."""
    paths = [str(HERE / "plugin_path")] + ([str(HERE / "cpu_path")] if is_cpu else [])
    return Tenant("engine", module, KEY, REMEDY, is_worker_writing_arena=True, paths=tuple(paths))


def start(python: str | None, module: str, is_cpu: bool, loading: Deadline, progress: Callable[[], None]) -> Calls:
    """The process, when it has said hello. python: None: the interpreter that runs this."""
    process = OwnProcess(python or sys.executable, tenant(module, is_cpu), Output(KNOWN_LINES, "engine"))
    calls = Calls(process, "engine", EngineFault, progress)
    calls.hello(loading)
    return calls


def lacking(python: str | None, error: ImportError) -> RunError:
    """SGLang cannot be imported where it should run."""
    return RunError(
        f"SGLang cannot be imported in {python or sys.executable}.",
        key=KEY,
        value=python,
        cause=str(error),
        remedy=f"{REMEDY} `scripts/sglang_environment.py` makes one.",
        exit_status=ExitStatus.placement,
    )


@dataclass(frozen=True)
class EngineStart:
    """How an engine is started, wherever it then takes requests."""

    python: str | None  # None: the interpreter that runs this
    arguments: dict[str, Any]  # of SGLang's ServerArgs
    is_cpu: bool
    loading: Deadline
    call: Deadline  # of a request
    progress: Callable[[], None]  # told of signs of life while it loads


class OwnedEngine(Engine):
    """An engine in a process that ends with this object."""

    def __init__(self, module: str, how: EngineStart, arguments: dict[str, Any]):
        """module: its host. Raises RunError where SGLang is not installed, EngineFault where it does not start."""
        self._process = start(how.python, module, how.is_cpu, how.loading, how.progress)
        try:
            self.about = self._process.call("make", how.loading, arguments=arguments)
            self.await_up(how.loading)
        except ImportError as error:
            self.close()
            raise lacking(how.python, error) from error
        except BaseException:
            self.close()
            raise

    def await_up(self, loading: Deadline) -> None:
        """Wait until requests are answered; an engine behind the pipe answers them when it is made."""

    def close(self) -> None:
        self._process.close()


class PipeEngine(OwnedEngine):
    """`Engine` of SGLang in `engine_host`."""

    def __init__(self, how: EngineStart):
        self._deadline = how.call
        super().__init__("rlrun.rollout.sglang.engine_host", how, how.arguments)

    def act(self, rows: Rows) -> np.ndarray:
        return self._process.call(
            "act",
            self._deadline,
            input_ids=rows.input_ids,
            images=rows.images,
            proprio=rows.proprio,
            keys=rows.keys,
            temperature=rows.temperature,
        )

    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        self._process.call("begin_update", self._deadline)
        for block in blocks:
            self._process.call(
                "update",
                self._deadline,
                names=[where.name for where in block.slices],
                dtypes=[where.dtype for where in block.slices],
                shapes=[list(where.shape) for where in block.slices],
                offsets=[where.offset for where in block.slices],
                payload=block.payload,
            )
        self._process.call("end_update", self._deadline)

    def probe(self) -> None:
        self._process.call("probe", self._deadline)

    def release(self) -> None:
        self._process.call("release", self._deadline)

    def resume(self) -> None:
        self._process.call("resume", self._deadline)
