"""Makes a worker of a role: environment variables first, then the import, then the object."""

from __future__ import annotations

import importlib
import os
from typing import Any

from rlrun.cluster.processes import WORKER_CLASSES
from rlrun.config.schema import RunConfig
from rlrun.observability.telemetry import Telemetry


def make_worker(role: str, rank: int, config: RunConfig, environment: dict[str, str]) -> Any:
    """A worker with its telemetry. `environment` must be in force before its libraries are imported."""
    os.environ.update(environment)
    module, name = WORKER_CLASSES[role].split(":")
    return getattr(importlib.import_module(module), name)(config, rank, Telemetry(f"{role}/{rank}"))
