"""Makes the SGLang backend of a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from rlrun.config.schema import Precision, RunConfig
from rlrun.pipe.client import Deadline
from rlrun.policies.openvla_oft.checkpoint import StoredPolicy, find_policy
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.rollout.sglang.arguments import server_arguments
from rlrun.rollout.sglang.backend import SglangBackend
from rlrun.rollout.sglang.engine import Engine
from rlrun.rollout.sglang.pipe_engine import EngineStart, PipeEngine
from rlrun.rollout.sglang.stored_blocks import stored_blocks
from rlrun.rollout.unsent_weights import unsent_names

ENVIRONMENT = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "rlrun_sglang_models"}  # in plugin_path
CPU_ENVIRONMENT = {"SGLANG_PLATFORM": "rlrun_cpu"}


def make_sglang(config: RunConfig, folder: Path, progress: Callable[[], None]) -> SglangBackend:
    """Make the backend. Raises RunError if policy or SGLang is missing, EngineFault if the engine does not start."""
    stored = find_policy(folder, config)
    engine = make_engine(config, folder, stored, progress)
    dtype = {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16}[config.rollout.precision]
    engine.update(stored_blocks(stored.weights, dtype), policy_version=0)
    return bind(engine, stored, config)


def bind(engine: Engine, stored: StoredPolicy, config: RunConfig) -> SglangBackend:
    """Return a backend on a running engine."""
    policy = VlaPolicy(stored.without_memory(), stored.processor)
    return SglangBackend(engine, policy, unsent_names(policy, config))


def make_engine(
    config: RunConfig, folder: Path, stored: StoredPolicy, progress: Callable[[], None] = lambda: None
) -> Engine:
    """Start an engine with dummy weights, and wait until it answers."""
    arguments = server_arguments(config, folder, stored.config)
    is_cpu = arguments.get("device") == "cpu"
    os.environ.update(ENVIRONMENT | (CPU_ENVIRONMENT if is_cpu else {}))
    loading = Deadline(config.cluster.start_deadline_s, "cluster.start_deadline_s")
    call = Deadline(config.cluster.step_deadline_s, "cluster.step_deadline_s")
    how = EngineStart(config.rollout.sglang.python, arguments, is_cpu, loading, call, progress)
    return PipeEngine(how)
