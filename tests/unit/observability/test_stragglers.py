"""A worker that takes much longer than its peers for the same work is named after a minute."""

from __future__ import annotations

import pytest

from rlrun.observability.trends import Stragglers
from rlrun.system.status import WorkerStatus


def statuses(second: int, ms_per_step: dict[str, float], per_second: float = 0.4, pid: int = 1) -> list[WorkerStatus]:
    names = {"env": ("simulated_us", "chunk_steps", "simulations"), "rollout": ("acted_us", "chunks", "answers")}
    found = []
    for worker, ms in ms_per_step.items():
        units = int(second * per_second)
        numbers = dict(zip(names[worker.partition("/")[0]], (round(1000 * ms * units), units, units), strict=True))
        found.append(WorkerStatus(worker, "vm", pid, "simulate", 0.0, numbers))
    return found


def sentences(seconds: int, ms_per_step: dict[str, float], **options: float) -> list[tuple[int, str]]:
    stragglers = Stragglers()
    return [
        (second, text)
        for second in range(seconds)
        for text in stragglers.sentences(statuses(second, ms_per_step, **options), float(second))
    ]


@pytest.mark.parametrize("role", ["env", "rollout"])
def test_a_straggler_is_named_after_a_minute_and_once_in_a_while(role: str) -> None:
    found = sentences(600, {f"{role}/0": 50.0, f"{role}/1": 2050.0, f"{role}/2": 60.0})
    assert [second for second, _ in found] == [60]
    assert f"{role}/1 takes 2.05e+03 ms for" in found[0][1] and "its peers 55 ms" in found[0][1]


@pytest.mark.parametrize(
    "ms_per_step",
    [
        {"env/0": 1000.0, "env/1": 2000.0},  # twice as slow: worlds differ
        {"env/0": 2000.0},  # it has no peers
        {"env/0": 1.0, "env/1": 20.0},  # it works for a hundredth of the time, and holds up nobody
        {"env/0": 50.0, "rollout/0": 2000.0},  # other work
    ],
)
def test_who_is_no_straggler(ms_per_step: dict[str, float]) -> None:
    assert sentences(200, ms_per_step) == []


def test_a_worker_that_grows_slower_is_named_without_peers() -> None:
    stragglers, us, found = Stragglers(), 0.0, []
    for second in range(600):
        us += 0.4e6 * 1.003**second
        counters = {"simulated_us": round(us), "chunk_steps": second + 1, "simulations": second + 1}
        status = WorkerStatus("env/0", "vm", 1, "simulate", 0.0, counters)
        found += [(second, text) for text in stragglers.sentences([status], float(second))]
    ((second, text),) = found
    assert 400 < second < 600 and "in its first minutes: it grows slower" in text


def test_answers_for_fewer_episodes_are_no_slower_worker() -> None:
    """On a GPU a forward pass over few rows takes as long as one over many."""
    stragglers = Stragglers()
    rows = 0
    for second in range(900):
        rows += 160 if second < 600 else 40
        counters = {"acted_us": 500_000 * (second + 1), "chunks": rows, "answers": 10 * (second + 1)}
        status = WorkerStatus("rollout/0", "vm", 1, "act", 0.0, counters)
        assert list(stragglers.sentences([status], float(second))) == []


def test_few_episodes_at_the_end_of_an_evaluation_are_no_slower_worker() -> None:
    """Every call of both workers takes a second, and one of them answers for one episode that goes on alone."""
    stragglers = Stragglers()
    for second in range(200):
        calls = {"rollout/0": min(second, 140), "rollout/1": second}
        rows = {"rollout/0": 16 * calls["rollout/0"], "rollout/1": 16 * min(second, 120) + max(0, second - 120)}
        found = []
        for worker, count in calls.items():
            counters = {"acted_us": count * 10**6, "chunks": rows[worker], "answers": count}
            found.append(WorkerStatus(worker, "vm", 1, "act", 0.0, counters))
        assert list(stragglers.sentences(found, float(second))) == []


def test_a_new_process_begins_anew() -> None:
    stragglers, slow = Stragglers(), {"env/0": 50.0, "env/1": 2050.0}
    found = [
        (second, text)
        for second in range(100)
        for text in stragglers.sentences(statuses(second, slow, pid=1 + (second >= 30)), float(second))
    ]
    assert [second for second, _ in found] == [90]
