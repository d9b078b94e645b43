"""Memory of every role is a metric; a node that will be full before the run ends is told, and nothing else is."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from rlrun.observability import trends
from rlrun.observability.trends import SETTLING_STEPS, MemoryGrowth, steady_slope, theil_sen_slope
from rlrun.system.status import WorkerStatus
from rlrun.system.telemetry import Telemetry

MB = 10**6


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of tests take no time."""
    monkeypatch.setattr(trends, "SETTLING_S", 0.0)


def status(
    worker: str, used_mb: float, free_mb: float = 8000, host: str = "vm", pid: int | None = None
) -> WorkerStatus:
    number = hash(worker) % 10_000 if pid is None else pid
    memory = {"host_memory_bytes": int(used_mb * MB), "host_free_bytes": int(free_mb * MB)}
    return WorkerStatus(worker, host, number, "idle", 0.0, **memory)


def told(used_mb, num_steps: int, last: int = 100_000, workers: tuple[str, ...] = ("env/1",), free_mb: float = 8000):
    """Return the sentences of each step of a run. used_mb: memory by step."""
    growth, found = MemoryGrowth(), {}
    for step in range(1, num_steps + 1):
        growth.put(
            [
                status("env/0", 200 + 1e-3 * step, free_mb, pid=1),
                *(status(name, used_mb(step), free_mb) for name in workers),
            ]
        )
        growth.end_step(step)
        if sentences := growth.warnings(step, last, 2.0):
            found[step] = sentences
    return found


def test_metrics_are_the_most_of_a_role_and_the_least_that_is_free() -> None:
    growth = MemoryGrowth()
    assert growth.end_step(1) == {}
    growth.put([status("env/0", 100), status("env/1", 300, free_mb=500), status("actor/0", 900, host="gpu")])
    growth.put([status("env/0", 350), status("env/1", 200), status("driver/0", 80)])
    assert growth.end_step(2) == {"memory_env": 350, "memory_actor": 900, "memory_driver": 80, "memory_free": 500}
    known = {"memory_env": 350, "memory_actor": 900, "memory_driver": 80, "memory_free": 500}
    assert growth.end_step(3) == known, "nobody was asked since"


def test_a_leak_is_told_with_its_worker_and_when_the_node_is_full() -> None:
    found = told(lambda step: 300 + 35 * step, 60)
    first = min(found)
    assert first > SETTLING_STEPS
    (sentence,) = found[first]
    assert sentence == ("env/1 grows by 35 MB a step: node vm will be full in about 7:37, 229 steps")
    assert len(found) == 1, "not again before half of the time has passed"


def test_several_that_grow_on_a_node_count_together() -> None:
    ((sentence,),) = told(lambda step: 300 + 10 * step, 40, workers=("env/1", "env/2")).values()
    assert "grows by 10 MB a step (2 workers there by 20 MB): node vm" in sentence and "400 steps" in sentence


@pytest.mark.parametrize(
    "used_mb",
    [
        lambda step: 300,
        lambda step: 300 + 100 * min(step, 10),  # caches of the first steps
        lambda step: 300 + (2000 if step > 40 else 0),  # one jump
        lambda step: 300 + 200 * (step % 20),  # collected now and then
        lambda step: 300 + random.Random(step).uniform(-50, 50),
    ],
    ids=["constant", "first steps", "jump", "sawtooth", "noise"],
)
def test_what_is_no_leak_is_not_told(used_mb) -> None:
    assert told(used_mb, 120) == {}


def test_a_young_run_s_caches_are_no_leak() -> None:
    """As in a run of a small world: 0.2 MB a step in its first hundred steps, of a million."""
    assert told(lambda step: 300 + 0.22 * step, 120, last=1_000_000, free_mb=20_000) == {}
    assert told(lambda step: 300 + 60 * math.log(step), 400, last=1_000_000) == {}


def test_a_node_that_was_not_asked_in_a_step_is_not_full() -> None:
    growth, found = MemoryGrowth(), []
    for step in range(1, 161):
        growth.put([status("driver/0", 100, free_mb=500)])
        if step % 4:
            growth.put([status("env/1", 300 + 35 * step, 8000 - 35 * step, "sim"), status("env/2", 300, 0, "other")])
        metrics = growth.end_step(step)
        found += growth.warnings(step, 100_000, 2.0)
        assert metrics["memory_free"] == 500
    assert len(found) == 2 and all("node sim will be full" in text for text in found), found
    growth.put([status("env/1", 300), status("env/2", 300), status("driver/0", 100)])
    assert growth.end_step(161)["memory_free"] == 8000, "the hosts without workers are forgotten"


def test_a_warning_that_was_wrong_does_not_silence_later_ones() -> None:
    growth, found = MemoryGrowth(), []
    for step in range(1, 161):
        free_mb = 1 if step == 30 else 8000 - 45 * step
        growth.put([status("env/1", 300 + 45 * step, free_mb)])
        growth.end_step(step)
        found += [step for _ in growth.warnings(step, 100_000, 2.0)]
    assert 30 in found and [step for step in found if step > 30] != [], found


def test_a_slow_leak_is_told_once_it_was_seen_for_a_while() -> None:
    found = told(lambda step: 300 + 5 * step, 120, last=1_000_000)
    assert 80 < min(found) < 120 and "1600 steps" in found[min(found)][0]


def test_a_leak_that_the_run_outlives_is_not_told() -> None:
    assert told(lambda step: 300 + 35 * step, 60, last=150) == {}
    assert told(lambda step: 300 + 35 * step, 60, last=100_000, free_mb=80e6) == {}


def test_a_new_process_begins_anew() -> None:
    growth = MemoryGrowth()
    for step in range(1, 200):
        growth.put([status("env/1", 300 + 35 * (step % 25), pid=step // 25)])
        growth.end_step(step)
        assert growth.warnings(step, 100_000, 2.0) == []


def test_slopes() -> None:
    line = [(step, 5.0 + 3.0 * step) for step in range(50)]
    assert theil_sen_slope(line) == steady_slope(line) == pytest.approx(3.0)
    line[10] = (10, 1e9)
    assert theil_sen_slope(line) == pytest.approx(3.0) and theil_sen_slope([]) == theil_sen_slope(line[:1]) == 0.0
    assert theil_sen_slope([(float(step), 2.0 * step) for step in range(5000)]) == pytest.approx(2.0)


class Counted(int):
    """A number of bytes that counts how often Python computes with it."""

    count = 0

    def __sub__(self, other: int) -> int:
        Counted.count += 1
        return int(self) - int(other)

    def __float__(self) -> float:
        Counted.count += 1
        return float(int(self))


@pytest.mark.parametrize("growth_mb", [0, 35], ids=["constant", "leak"])
def test_python_computes_little_with_each_worker_after_a_step(growth_mb: int) -> None:
    def operations(num_workers: int) -> int:
        growth = MemoryGrowth()
        for step in range(1, 200):
            used = Counted((300 + growth_mb * step) * MB)
            names = [f"env/{rank}" for rank in range(num_workers)]
            growth.put([replace(status(name, 1, free_mb=1e9), host_memory_bytes=used) for name in names])
            growth.end_step(step)
        Counted.count = 0
        growth.warnings(199, 100_000, 2.0)
        return Counted.count

    few, many = operations(8), operations(144)
    assert few * 144 == many * 8, "linear in workers"
    assert 0 < few / 8 <= 3 * trends._SERIES_STEPS, "and not in the pairs of their steps"


def test_the_memory_of_a_simulator_in_its_own_process_is_the_worker_s() -> None:
    held = "x = bytearray(80_000_000)\nprint(len(x), flush=True)\ninput()"
    before = Telemetry("env/0").status().host_memory_bytes
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        assert Telemetry("env/0").status().host_memory_bytes - before > 75e6
        assert Telemetry("driver/0").status().host_memory_bytes < before + 75e6
        child.kill()


def test_the_first_minute_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "SETTLING_S", 60.0)
    assert told(lambda step: 300 + 35 * step, 60) == {}
