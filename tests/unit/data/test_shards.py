"""Everyone cuts the rows alike, however many workers and ranks there are."""

from __future__ import annotations

import pytest

from rlrun.edges.seeds import actor_ranks_of


@pytest.mark.parametrize(("num_workers", "num_ranks"), [(1, 1), (2, 4), (4, 2), (3, 2), (2, 3), (8, 8), (6, 4)])
def test_as_if_every_row_were_asked(num_workers, num_ranks):
    num_rows = 2 * num_workers * num_ranks
    for worker in range(num_workers):
        rows = range(worker * num_rows // num_workers, (worker + 1) * num_rows // num_workers)
        assert list(actor_ranks_of(worker, num_workers, num_ranks)) == sorted(
            {row * num_ranks // num_rows for row in rows}
        )
