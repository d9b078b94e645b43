"""Episodes and statuses that the tests here share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlrun.config.schema import RunConfig
from rlrun.edges.reports import EpisodeReport
from rlrun.system.status import WorkerStatus


@pytest.fixture
def config() -> RunConfig:
    """The defaults, with few steps."""
    config = RunConfig()
    config.num_steps = 20
    return config


@pytest.fixture
def episode() -> Callable[..., EpisodeReport]:
    """Build a finished episode."""

    def build(success: bool = True, infra_fault: bool = False, seed: int = 17) -> EpisodeReport:
        ended = success and not infra_fault
        return EpisodeReport(
            3, seed, success, float(success), 1.5, 44, ended, not ended and not infra_fault, infra_fault
        )

    return build


@pytest.fixture
def status() -> Callable[..., WorkerStatus]:
    """Build what a worker says."""

    def build(worker: str, phase: str = "simulate", age_s: float = 0.5, env_steps: int = 100) -> WorkerStatus:
        return WorkerStatus(worker, "lab", 4711, phase, age_s, {"env_steps": env_steps}, 182 * 1024**2)

    return build
