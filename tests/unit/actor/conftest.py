"""One and two real ranks, started once for all tests of the actor, and a library that is optional."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.actor.bitsandbytes_library import folder_of_library
from tests.unit.actor.rank_pool import RankPool


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def one_rank() -> Iterator[RankPool]:
    pool = RankPool(1)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def library() -> Path | None:
    """Return the folder of bitsandbytes for `make_importable`; skips the test if it is not available."""
    return folder_of_library()
