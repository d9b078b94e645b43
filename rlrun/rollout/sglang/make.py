"""The SGLang backend that a configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rlrun.config.schema import RunConfig, SglangMode
from rlrun.pipe.calls import Deadline
from rlrun.policies.checkpoint import read_config
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.rollout.sglang.arguments import server_arguments
from rlrun.rollout.sglang.backend import SglangBackend
from rlrun.rollout.sglang.engine import Engine

ENVIRONMENT = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "rlrun_sglang_models"}  # in plugin_path
CPU_ENVIRONMENT = {"SGLANG_PLATFORM": "rlrun_cpu"}


def make_sglang(config: RunConfig, folder: Path, progress: Callable[[], None]) -> SglangBackend:
    """Raises RunError where policy or SGLang are missing, EngineFault where the engine does not start."""
    described = read_config(folder, config)
    return SglangBackend(make_engine(config, folder, described, progress), described, folder)


def make_engine(
    config: RunConfig, folder: Path, described: OpenVLAOFTConfig, progress: Callable[[], None] = lambda: None
) -> Engine:
    """Start it, and wait until it has loaded."""
    arguments = server_arguments(config, folder, described)
    is_cpu = arguments.get("device") == "cpu"
    os.environ.update(ENVIRONMENT | (CPU_ENVIRONMENT if is_cpu else {}))
    python = config.rollout.sglang.python
    loading = Deadline(config.cluster.start_deadline_s, "cluster.start_deadline_s")
    call = Deadline(config.cluster.step_deadline_s, "cluster.step_deadline_s")
    if config.rollout.sglang.mode is SglangMode.http:
        from rlrun.rollout.sglang.http_engine import HttpEngine

        return HttpEngine(python, arguments, is_cpu, loading, call, progress)
    from rlrun.rollout.sglang.pipe_engine import PipeEngine

    return PipeEngine(python, arguments, is_cpu, loading, call, progress)
