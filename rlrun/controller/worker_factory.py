"""Makes a worker of a role: environment variables first, then the import, then the object."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.observability.telemetry import Telemetry

# Text, because a worker's module is imported in its own process, after the environment variables that its libraries
# read have been set.
_WORKER_CLASSES = {
    "env": "rlrun.workers.env_worker:EnvWorker",
    "rollout": "rlrun.workers.rollout_worker:RolloutWorker",
    "actor": "rlrun.workers.actor_worker:ActorWorker",
}


def make_worker(
    role: str, rank: int, config: RunConfig, environment: Mapping[str, str | None], python: str | None = None
) -> Any:
    """Make a worker with its telemetry. Sets `environment` before its libraries are imported; None removes a variable.

    python: interpreter of an env worker's simulator; None: this one.
    """
    for variable, value in environment.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    module, name = _WORKER_CLASSES[role].split(":")
    extra = {"python": python} if role == "env" else {}
    return getattr(importlib.import_module(module), name)(config, rank, Telemetry(f"{role}/{rank}"), **extra)
