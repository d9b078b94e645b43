"""benchmarks.overhead: what of a chain is somebody's work, and what is between."""

from __future__ import annotations

import pytest

from benchmarks.overhead import Chain

# simulates, sends, is pushed aside by the pass that it asked for, and waits for the rest of it
ENV = [(1.0, 3.0, "simulate"), (5.0, 8.0, "wait for actions"), (8.0, 10.0, "reset")]


def test_a_pass_counts_from_its_beginning() -> None:
    chain = Chain(ENV, [(4.0, 7.0, "act"), (4.0, 4.5, "apply weights")], 0.0, 11.0)
    assert chain.num_asked == 1 and chain.end_s == 10.0
    assert chain.work_s == pytest.approx(2 + 3 + 2) and chain.overhead_s == pytest.approx(3.0)


def test_nothing_counts_twice_or_after_the_end() -> None:
    chain = Chain(ENV, [(2.0, 4.0, "act"), (9.0, 12.0, "act"), (13.0, 14.0, "act")], 0.0, 14.0)
    assert chain.work_s == pytest.approx(2 + 1 + 2)  # 1..4 and 8..10
