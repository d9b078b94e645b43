"""Totals never fall, also if a worker misses a round or is replaced."""

from __future__ import annotations

from rlrun.system.status import WorkerStatus
from rlrun.system.telemetry import CounterTotals


def status(worker: str, **counters: int) -> WorkerStatus:
    return WorkerStatus(worker, "lab", 4711, "idle", 0.0, counters)


def test_a_worker_that_misses_a_round_keeps_its_number() -> None:
    totals = CounterTotals()
    totals.put([status("rollout/0", weight_buckets=8), status("rollout/1", weight_buckets=8)])
    start = totals.total("rollout/weight_buckets")
    totals.put([status("rollout/1", weight_buckets=9)])
    assert totals.total("rollout/weight_buckets") - start == 1
    totals.put([status("rollout/0", weight_buckets=9), status("rollout/1", weight_buckets=9)])
    assert totals.total("rollout/weight_buckets") - start == 2


def test_a_new_process_adds_to_what_the_old_one_did() -> None:
    totals = CounterTotals()
    totals.put([status("env/0", chunk_steps=40)])
    totals.put([status("env/0")])
    assert totals.total("env/chunk_steps") == 40
    totals.put([status("env/0", chunk_steps=3)])
    assert totals.total("env/chunk_steps") == 43


def test_one_worker_or_a_role() -> None:
    totals = CounterTotals()
    totals.put([status("env/1", demos=2), status("env/10", demos=3), status("actor/1", demos=5)])
    assert [totals.total(counter) for counter in ("env/demos", "env/1/demos", "actor/demos")] == [5, 2, 5]
    assert totals.total("rollout/demos") == 0
