"""Optional packages that a configuration needs: which, in which interpreter, and whether they can be imported there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlrun.config.schema import AttentionKernel, OptimizerKind, RolloutBackendKind, RunConfig
from rlrun.system.import_path import question
from rlrun.system.machine_load import local_load_factor

LIMIT_S = 30.0  # for all packages of an interpreter; some import torch
_TRAINER_ONLY = ("PYTHONPATH", "PYTHONHOME")  # variables that would break another interpreter
_PROGRAM = """
import json, sys
faults = []
for statement in json.loads(sys.argv[1]):
    try:
        exec(statement, {})
        faults.append("")
    except BaseException as error:
        faults.append(f"{type(error).__name__}: {error}")
print(json.dumps(faults), flush=True)
"""


@dataclass(frozen=True)
class PackageRequest:
    """A package to import. Example: PackageRequest("wandb", "logging.wandb", "import wandb", …)."""

    package: str
    key: str  # configuration key that needs it
    statement: str  # Python that imports what rlrun uses of it
    python: str  # interpreter of the workers
    fix: str  # what to do if it is missing


@dataclass(frozen=True)
class PackageFacts:
    """Whether a package can be imported. Example: PackageFacts(request, "ModuleNotFoundError: No module …")."""

    request: PackageRequest
    error: str  # "" if it can be imported
    is_late: bool = False  # the import was not finished in time
    is_started: bool = True  # False: there is no such interpreter, or it is no program


def needed_packages(
    config: RunConfig, workers: Mapping[str, int], interpreters: Mapping[str, str]
) -> tuple[PackageRequest, ...]:
    """Return the requests of a node.

    workers: role -> number of its workers there. interpreters: of its simulators -> configuration key that names it.
    """
    roles = {role for role, count in workers.items() if count}
    return (*_of_trainer(config, roles), *_of_sglang(config, roles), *_of_simulators(interpreters))


def _of_trainer(config: RunConfig, roles: set[str]) -> Iterator[PackageRequest]:
    here = sys.executable
    is_hf = config.rollout.backend is RolloutBackendKind.hf
    if config.actor.optimizer is OptimizerKind.adamw_8bit and "actor" in roles:
        fix = "pip install 'rlrun[bitsandbytes]' on this node, or actor.optimizer=adamw"
        yield PackageRequest("bitsandbytes", "actor.optimizer", "import bitsandbytes", here, fix)
    if config.policy.attention is AttentionKernel.flash and ({"actor", *(["rollout"] if is_hf else [])} & roles):
        statement = "from flash_attn import flash_attn_func, flash_attn_varlen_func"
        fix = "pip install flash-attn, built for this torch, or policy.attention=sdpa"
        yield PackageRequest("flash-attn", "policy.attention", statement, here, fix)


def _of_sglang(config: RunConfig, roles: set[str]) -> Iterator[PackageRequest]:
    if config.rollout.backend is RolloutBackendKind.sglang and "rollout" in roles:
        python = config.rollout.sglang.python or sys.executable
        fix = "name the interpreter that has SGLang in rollout.sglang.python; scripts/sglang_environment.py makes one"
        yield PackageRequest("sglang", "rollout.sglang.python", "import sglang", python, fix)


def _of_simulators(interpreters: Mapping[str, str]) -> Iterator[PackageRequest]:
    for python, key in interpreters.items():
        fix = f"{python} -m pip install numpy, or name the simulator's interpreter as python: of its node group"
        yield PackageRequest("numpy", key, "import numpy", python, fix)


def driver_packages(config: RunConfig) -> tuple[PackageRequest, ...]:
    """Return the requests for the driver: the trackers."""
    wanted = (
        ("tensorboard", config.logging.tensorboard, "from tensorboard.summary.writer import event_file_writer"),
        ("wandb", config.logging.wandb, "import wandb"),
        ("trackio", config.logging.trackio, "import trackio"),
    )
    return tuple(
        PackageRequest(
            name, f"logging.{name}", statement, sys.executable, f"pip install {name}, or logging.{name}=false"
        )
        for name, is_used, statement in wanted
        if is_used
    )


def open_packages(requests: Iterable[PackageRequest], limit_s: float = LIMIT_S) -> tuple[PackageFacts, ...]:
    """Import each package in a process of its interpreter, once per interpreter.

    limit_s: of an interpreter, on an idle machine.
    """
    by_python: dict[str, list[PackageRequest]] = {}
    for request in requests:
        by_python.setdefault(request.python, []).append(request)
    return tuple(facts for python, asked in by_python.items() for facts in _opened(python, asked, limit_s))


def interpreter_environment(python: str) -> dict[str, str]:
    """Return this process's variables for another interpreter, without those that would break it."""
    hidden = () if python == sys.executable else _TRAINER_ONLY
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _opened(python: str, requests: list[PackageRequest], limit_s: float) -> list[PackageFacts]:
    answer = ask(python, _PROGRAM, [json.dumps([request.statement for request in requests])], limit_s)
    faults = answer.value if isinstance(answer.value, list) else [answer.error] * len(requests)
    told = answer.is_late, answer.is_started
    return [PackageFacts(request, fault, *told) for request, fault in zip(requests, faults, strict=True)]


@dataclass(frozen=True)
class Answer:
    """Result of a program in another interpreter. Example: Answer({"kind": "egl"}), Answer(error="killed by …")."""

    value: Any = None  # of the JSON in its last line
    error: str = ""  # why there is none; "" if there is one, or none in time
    is_late: bool = False
    is_started: bool = True  # False: there is no such interpreter, or it is no program


def ask(
    python: str,
    program: str,
    arguments: Sequence[str],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run the text of a program in an interpreter, and read the JSON that it prints last; one that hangs is killed.

    limit_s: on an idle machine. environment: beside this process's variables.
    """
    try:
        child = subprocess.Popen(
            question(python, program, *arguments),
            env=interpreter_environment(python) | dict(environment or {}),
            stdin=subprocess.DEVNULL,  # a question is an error
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        return Answer(error=f"{python} does not start: {error.strerror}", is_started=False)
    try:
        output, errors = child.communicate(timeout=local_load_factor() * limit_s)
    except subprocess.TimeoutExpired:
        child.kill()  # no wait: a process that hangs in a driver does not end
        return Answer(is_late=True)
    if child.returncode < 0:
        return Answer(error=f"killed by {signal.Signals(-child.returncode).name}")
    with suppress(ValueError, IndexError):
        return Answer(json.loads(output.strip().splitlines()[-1]))
    last = errors.strip().splitlines()
    return Answer(error=last[-1] if last else f"{python} ended with status {child.returncode}")
