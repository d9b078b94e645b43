"""The counts of a run's policy, for plans: from the cache, else by a process that makes the policy without memory.

A small policy is estimated from its number of parameters, so that its plan starts no process and imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.sections import to_dict
from rlrun.config.simulator_spec import simulator_spec
from rlrun.config.sources import computing_digest
from rlrun.policies.counts import PassCount, PolicyCounts
from rlrun.policies.folders import base_of, has_only_adapters, parameters_in
from rlrun.policies.spec import policy_spec
from rlrun.system.errors import RunError
from rlrun.system.run_queue import scheduled_seconds

logger = logging.getLogger(__name__)
FEW_PARAMETERS = 3_000_000  # a policy with fewer is not counted: on a GPU everything of it is fast and fits
STUCK_S = 300.0  # for which the process that counts neither computed nor waited for a core; as long as it does, it may
_POLL_S = 1.0
remembered: dict[str, PolicyCounts] = {}  # by digest; a run asks several times, also where nothing can be cached
_PROGRAM = "rlrun.policies.counting"
_PACKAGES = ("rlrun", "torch", "transformers")  # whose versions the counts depend on


def policy_counts(config: RunConfig) -> PolicyCounts:
    """Return the counts of the policy that a run trains.

    A policy that cannot be counted, as it needs tensors with values, is told by a warning, and its counts have
    `is_counted=False`. Raises RunError for a folder that cannot be opened.
    """
    number = _known_parameters(config)
    if 0 < number <= FEW_PARAMETERS:
        return estimated(config, number)
    name = digest(config)
    if name not in remembered:
        remembered[name] = _from_cache(config, name, number)
    return remembered[name]


def _from_cache(config: RunConfig, name: str, number: int) -> PolicyCounts:
    """Return the counts of the cache, else count, and write them there. number: of parameters; 0: unknown."""
    file = Path(config.cache_dir) / f"counts-{name}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):  # not counted yet, or damaged
        return PolicyCounts.from_json(file.read_text(encoding="utf-8"))
    logger.warning("counting what policy.kind=%s computes, once: it takes up to a minute", config.policy.kind)
    try:
        found = _counted(config)
    except _NotCountedError as error:
        logger.warning(
            "the plan only knows that policy.kind=%s has %s parameters: it could not be counted on torch's meta "
            "device, where tensors have no values (%s)",
            *(config.policy.kind, f"{number:,}" if number else "an unknown number of", error),
        )
        return replace(estimated(config, number), is_counted=False)
    with suppress(OSError):  # then the next plan counts again
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.write_text(found.to_json(), encoding="utf-8")
        draft.replace(file)
    return found


class _NotCountedError(Exception):
    """The policy's class does not act and learn on the meta device, or the process that counts is stuck."""


# --- a small policy ---------------------------------------------------------------------------


def _known_parameters(config: RunConfig) -> int:
    """Return the number of parameters by the policy's files or its spec; 0 if neither says it."""
    spec = policy_spec(config)
    if config.policy.path is not None:
        folder = Path(config.policy.path)
        return parameters_in(base_of(folder) if has_only_adapters(folder) else folder)
    if spec.num_parameters is None:
        return 0
    return spec.num_parameters(config, simulator_spec(config.env).world.planned_spaces(config.env))


def estimated(config: RunConfig, number: int) -> PolicyCounts:
    """Return counts of a small policy as if each parameter took part in one product per row.

    number: of parameters.
    """
    spaces = simulator_spec(config.env).world.planned_spaces(config.env)
    actor = config.actor
    width = actor.param_precision.num_bytes
    num_pixels = spaces.num_images * config.env.image_size**2 * 3
    saved = width * (num_pixels + 8 * number / 1000)
    act = PassCount(flops=2 * number, num_bytes=num_pixels, num_kernels=50)
    update = PassCount(flops=6 * number, num_bytes=3 * saved, num_kernels=150, saved_bytes=saved)
    recompute = PassCount(flops=8 * number, num_bytes=4 * saved, num_kernels=200, saved_bytes=saved)
    num_tokens = config.policy.num_action_chunks * spaces.num_actions
    return PolicyCounts(number, number, 0, 0, number, (), num_tokens, act, update, recompute)


# --- the cache --------------------------------------------------------------------------------


def digest(config: RunConfig) -> str:
    """Return a short name of all that the counts depend on."""
    env = config.env
    actor = config.actor
    spaces = simulator_spec(env).world.planned_spaces(env)
    depends = {
        "policy": to_dict(config.policy),
        "lora": to_dict(actor.lora),
        "algorithm": config.algorithm.name,
        "precision": [actor.param_precision.value, config.rollout.precision.value],
        "env": [env.image_size, spaces.num_images, spaces.num_proprio, spaces.num_actions],
        "versions": [version(name) for name in _PACKAGES],
        "sources": computing_digest(config),
        "files": sorted(_files(config)),
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _files(config: RunConfig) -> Iterator[tuple[str, int, int]]:
    """Yield (name, bytes, time of the last change) of the files in the policy's folder."""
    if config.policy.path is None:
        return
    folder = Path(config.policy.path)
    for place in [folder, base_of(folder)] if has_only_adapters(folder) else [folder]:
        for file in place.rglob("*") if place.is_dir() else ():
            if file.is_file():
                yield str(file.relative_to(place)), file.stat().st_size, file.stat().st_mtime_ns


# --- the process that counts ------------------------------------------------------------------


def _counted(config: RunConfig) -> PolicyCounts:
    command = [sys.executable, "-P", "-m", _PROGRAM]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(folder or os.curdir for folder in sys.path)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        output, errors = _answer(process, pickle.dumps(config))
    try:
        found = pickle.loads(output)
    except Exception as error:  # of an incomplete pickle: it may raise anything
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        cause = last[0] if last else f"The process ended with status {process.returncode}."
        raise _NotCountedError(cause) from error
    if isinstance(found, RunError):
        raise found
    assert isinstance(found, PolicyCounts)
    return found


def _answer(process: subprocess.Popen[bytes], question: bytes | None) -> tuple[bytes, bytes]:
    """Return what a process writes to its outputs. Raises _NotCountedError if it is stuck, not while it waits."""
    worked_s = 0.0
    moved_at = time.monotonic()
    while True:
        try:
            return process.communicate(question, timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            before_s = worked_s
            worked_s = scheduled_seconds([process.pid])
            question = None  # it was sent
        if worked_s > before_s:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > STUCK_S:
            process.kill()
            raise _NotCountedError(f"its process did not compute for {STUCK_S:g} s")
