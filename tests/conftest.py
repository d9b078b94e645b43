"""Cheap tests first, one thread per process, and no test sees the tester's own configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# The longest files come before others as dear, so that no process is left alone with one of them at the end.
TIERS = ("architecture", "unit", "golden", "contracts", "cluster", "integration", "learning", "gpu")


def _tier(item: pytest.Item) -> int:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return TIERS.index(folder) if folder in TIERS else len(TIERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order by tier, and mark the dear tiers by their folder."""
    items.sort(key=_tier)
    for item in items:
        tier = _tier(item)
        if tier < len(TIERS) and TIERS[tier] in ("integration", "learning", "cluster", "gpu"):
            item.add_marker(getattr(pytest.mark, TIERS[tier]))


@pytest.fixture
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent
