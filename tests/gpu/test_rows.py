"""The rows of `make gpu` that need no run: kernels, updates, offloading and MuJoCo Warp on the first card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.gpu import kernels, memory, updates, warp_world
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.part import allocator
from benchmarks.gpu.row import Outcome, Row

pytestmark = pytest.mark.skipif(torch.version.cuda is None or not torch.cuda.is_available(), reason="no GPU is here")
ROWS = [*kernels.ROWS, *updates.ROWS, *memory.ROWS, *warp_world.ROWS]


@pytest.fixture(scope="module", autouse=True)
def allocator_of_actor_workers() -> Iterator[None]:
    """torch reads its settings when it first takes memory of a card."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in allocator(Machine(torch.cuda.device_count()), torch.__version__).items():
            patch.setenv(name, value)
        yield


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_as_expected(row: Row) -> None:
    result = row.result(Machine(torch.cuda.device_count()))
    if result.outcome == Outcome.left_out.value:
        pytest.skip(result.seen)
    assert result.outcome == Outcome.as_expected.value, f"expected {result.expected}; seen {result.seen}"
