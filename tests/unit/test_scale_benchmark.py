"""benchmarks.scale: the real driver runs against its simulated workers, and asks as often as there are workers."""

from __future__ import annotations

import pytest

from benchmarks import scale
from rlrun.cluster import waits


def test_four_times_the_nodes_are_four_times_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "ray", waits.ray)  # put back: the benchmark replaces it
    few, many = scale.measured(2), scale.measured(8)
    assert few["calls a step"] == 6 * scale.PER_NODE
    assert many["calls a step"] == 4 * few["calls a step"]
    assert all(cost >= 0 for cost in many.values()) and many["board MB"] == pytest.approx(4 * few["board MB"], rel=0.01)
