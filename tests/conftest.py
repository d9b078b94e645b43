"""Cheap tests first, one thread per process, and no test sees the tester's own configuration."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path

import pytest

HOME = tempfile.mkdtemp(prefix="rlrun-home-")  # of this process and its children: a run leaves a file in ~/.rlrun
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["HOME"] = HOME
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # of every Ray of this process, which reads it once
# As rlrun.cluster sets them; a test that imports Ray before it would else decide otherwise.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

CHEAP = ("architecture", "unit", "golden", "contracts")
DEAR = ("cluster", "integration", "learning", "gpu", "pretended_cuda")
# These files first of all dear ones, so that no process is left alone with one of them at the end.
LONGEST = (
    *("test_gpu_program", "test_sglang_run", "test_recovery", "test_two_hosts", "test_slurm", "test_signals"),
    *("test_doctor", "test_strangers", "test_bad_input", "test_programs", "test_variants", "test_lost_node"),
    *("test_return_rises", "test_nodes", "test_sweep", "test_watchdog", "test_one_command", "test_ray_workers"),
)


def _folder(item: pytest.Item) -> str:
    """The folder of a test's tier; tests of packages/ are as those of units."""
    here = Path(__file__).parent
    return item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else "unit"


def _place(item: pytest.Item) -> tuple[int, int]:
    folder, file = _folder(item), item.path.stem
    if folder in CHEAP:
        return CHEAP.index(folder), 0
    return len(CHEAP), LONGEST.index(file) if file in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order by tier, and mark the dear tiers by their folder."""
    items.sort(key=_place)
    for item in items:
        if (folder := _folder(item)) in DEAR:
            item.add_marker(getattr(pytest.mark, folder))


@pytest.fixture
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent
