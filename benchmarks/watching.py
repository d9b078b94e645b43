"""What it costs that a run is watched: `python -m benchmarks.watching [rounds=N] [key=value …]`.

Two answers. Top down: steps of the real program with and without `watchdog.enabled`, in alternating runs, so that a
machine that gets slower hits both sides; medians over all steps of a side. Bottom up: the CPU time that the watching
itself takes, counted in one more run: the processes of sentinel and guard as the kernel counts them, a heartbeat and a
look at the board as this process measures them, times how often they happen. A machine that is busy with something else
blurs the first, not the second.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks.loop import NUM_STEPS, real_steps
from rlrun.config.loader import load
from rlrun.observability.heartbeat import beat
from rlrun.observability.run_files import JsonLines, read_metrics
from rlrun.observability.telemetry import Telemetry
from rlrun.watchdog.watchdog import Watchdog

ROUNDS = 4
WATCHERS = ("rlrun.watchdog.sentinel", "rlrun.watchdog.guard")
REPEATS = 300
POLL_S = 0.5  # of the session, and at most so often do waits look


def main() -> None:
    """Measure both and print them."""
    os.environ |= {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "1"}
    rounds = next((int(word.partition("=")[2]) for word in sys.argv[1:] if word.startswith("rounds=")), ROUNDS)
    overrides = [word for word in sys.argv[1:] if not word.startswith("rounds=")]
    steps: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="rlrun-watching-") as folder, ProcessTimes() as times:
        for number in range(rounds):
            for is_watched in (True, False) if number % 2 == 0 else (False, True):
                run_dir = Path(folder) / f"{number}-{is_watched}"
                settings = [*overrides, f"watchdog.enabled={str(is_watched).lower()}"]
                real_steps(run_dir, settings)
                steps[is_watched] += [line["step_s"] for line in read_metrics(run_dir)[2:]]  # two warm up
        share = own_share(load([*overrides, f"cache_dir={folder}", f"output_dir={folder}"]), times)
    print(f"{rounds} runs of {NUM_STEPS - 2} steps on each side, seconds of wall time a step:")
    for name, of in (("median", statistics.median), ("fastest tenth", fastest_tenth)):
        watched, bare = of(steps[True]), of(steps[False])
        print(f"{name:<20} {watched:7.3f} watched {bare:7.3f} not watched, ratio {watched / bare:.3f}")
    print(f"watching itself      {100 * share:7.2f} % of {os.cpu_count()} cores, by CPU time")


def fastest_tenth(seconds: list[float]) -> float:
    """What a tenth of the steps stays below: what the machine can do when nobody disturbs it."""
    return statistics.quantiles(seconds, n=10)[0]


def own_share(config, times: ProcessTimes) -> float:
    """CPU-seconds per second of all watching, over the number of cores."""
    num_processes = 1 + config.env.num_workers + config.rollout.num_workers + config.actor.num_workers
    with tempfile.TemporaryDirectory() as folder:
        telemetry, lines = Telemetry("env/0"), JsonLines(Path(folder) / "board.jsonl")
        of_beat = cpu_seconds(lambda: lines.write(beat(telemetry.status())))
        lines.close()
        watchdog = Watchdog(config, Path(folder), telemetry)
        told = [Telemetry(f"env/{rank}").status() for rank in range(num_processes)]
        of_put = cpu_seconds(lambda: (watchdog.board.put(told), watchdog.expectations()))
    per_second = {
        "sentinel and guard": times.share(),
        "heartbeats": num_processes * of_beat / config.watchdog.beat_s,
        "board": 2 * of_put / POLL_S,  # for the console, and for the wait of the driver
    }
    for name, seconds in per_second.items():
        print(f"{name:<20} {1000 * seconds:7.2f} ms of CPU a second")
    return sum(per_second.values()) / (os.cpu_count() or 1)


class ProcessTimes(threading.Thread):
    """While open, sees the sentinels and guards of the runs below this process, and the CPU time that they took."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._is_over = threading.Event()
        self._used: dict[int, tuple[float, float]] = {}  # pid -> seconds alive when first seen, CPU-seconds
        self._first: dict[int, tuple[float, float]] = {}

    def run(self) -> None:
        """Look once a second."""
        while not self._is_over.wait(1.0):
            for process in psutil.Process().children(recursive=True):
                try:
                    if any(name in process.cmdline() for name in WATCHERS):
                        cpu = process.cpu_times()
                        self._used[process.pid] = (time.monotonic(), cpu.user + cpu.system)
                        self._first.setdefault(process.pid, self._used[process.pid])
                except psutil.Error:  # it has ended meanwhile
                    continue

    def share(self) -> float:
        """CPU-seconds per second of one run's sentinel and guard, without their starts."""
        spans = [(end[0] - self._first[pid][0], end[1] - self._first[pid][1]) for pid, end in self._used.items()]
        alive_s = sum(seconds for seconds, _ in spans)
        return len(WATCHERS) * sum(cpu for _, cpu in spans) / alive_s if alive_s else 0.0

    def __enter__(self) -> ProcessTimes:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join(timeout=10)


def cpu_seconds(work) -> float:
    """CPU time of this process for one call, mean of many."""
    work()
    start = time.process_time()
    for _ in range(REPEATS):
        work()
    return (time.process_time() - start) / REPEATS


if __name__ == "__main__":
    main()
