"""One and two real ranks, started once for all tests of the actor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
