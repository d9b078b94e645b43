"""Memory at a barrier: the logged line, and the workers that differ from their peers."""

from __future__ import annotations

from rlrun.observability.trends import free_memory, outlier_workers
from rlrun.system.status import WorkerStatus
from rlrun.system.telemetry import Telemetry

GB = 10**9


def status(worker: str, host_gb: float, device_free_gb: float | None) -> WorkerStatus:
    free = None if device_free_gb is None else device_free_gb * GB
    return WorkerStatus(
        worker, "n0", 1, "idle", 0.0, {}, int(host_gb * GB), host_free_bytes=700 * GB, device_free_bytes=free
    )


def test_the_line_holds_the_spread() -> None:
    line = free_memory([status("actor/0", 4, 61.2), status("actor/1", 4, 63.0), status("env/0", 1, None)])
    assert line == "free device memory 61.2 to 63.0 GB over 2 workers; free host memory 700.0 GB on n0"


def test_equal_workers_are_not_reported() -> None:
    assert outlier_workers([status(f"actor/{rank}", 4.0 + 0.1 * rank, 60) for rank in range(4)]) == []
    assert outlier_workers([status("actor/0", 4, 10), status("rollout/0", 1, 60)]) == []  # roles differ


def test_a_rank_that_offloads_alone_is_reported() -> None:
    ranks = [status(f"actor/{rank}", 4, 60) for rank in range(3)] + [status("actor/3", 34, 72)]
    told = outlier_workers(ranks)
    assert len(told) == 2 and all("actor/3 on n0" in text for text in told)
    assert "72.0 GB free device memory, 60.0 GB" in told[0] and "34.0 GB host memory in use, 4.0 GB" in told[1]


def test_two_ranks_that_differ_are_told_once_with_both_numbers() -> None:
    told = outlier_workers([status("actor/0", 20, 60), status("actor/1", 10, 60)])
    assert told == ["actor/0 on n0 and actor/1 on n0 differ: 20.0 and 10.0 GB host memory in use"]


def test_a_worker_measures_its_node() -> None:
    here = Telemetry("env/0").status()
    assert here.host_free_bytes > 0 and here.device_free_bytes is None
