"""Cost of watching a run: `python -m benchmarks.watching [rounds=N] [key=value …]`.

Steps of the real program with and without `watchdog.enabled`, in alternating runs, so that a machine that gets slower
hits both sides: medians of wall time and of the CPU time of all processes of a run, which a neighbour disturbs less.
And what the watching itself takes: its processes as the kernel counts them, a heartbeat and a look at the board as this
process measures them, times how often they happen.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.loop import NUM_STEPS, real_steps
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.observability.run_files import JsonLines, read_metrics
from rlrun.observability.telemetry import Telemetry
from rlrun.watchdog.heartbeat import status_record
from rlrun.watchdog.watchdog import Watchdog

ROUNDS = 4
WARM_UP = 2  # steps
WATCHERS = ("rlrun.watchdog.sentinel", "rlrun.watchdog.guard")
REPEATS = 300
BOARDS_PER_S = 4  # twice for the console, and at most so often again for the wait of the driver


def main() -> None:
    """Measure both sides and print them."""
    os.environ |= {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
    rounds = next((int(word.partition("=")[2]) for word in sys.argv[1:] if word.startswith("rounds=")), ROUNDS)
    overrides = [word for word in sys.argv[1:] if not word.startswith("rounds=")]
    meters: dict[bool, list[Meter]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="rlrun-watching-") as folder:
        for number in range(rounds):
            for is_watched in (True, False) if number % 2 == 0 else (False, True):
                run_dir = Path(folder) / f"{number}-{is_watched}"
                with Meter(run_dir) as meter:
                    real_steps(run_dir, [*overrides, f"watchdog.enabled={str(is_watched).lower()}"], "train")
                meters[is_watched].append(meter)
        show(meters)
        config = load([*overrides, f"cache_dir={folder}", f"output_dir={folder}"])
        of_processes = statistics.median(meter.watchers_share for meter in meters[True])
        show_own(config, of_processes, Path(folder))


def show(meters: dict[bool, list[Meter]]) -> None:
    """Print both sides beside each other."""
    print(f"{len(meters[True])} runs of {NUM_STEPS - WARM_UP} steps on each side; medians of a step:")
    for name, seconds_of in (("wall", lambda meter: meter.wall_s), ("CPU", lambda meter: meter.cpu_s)):
        watched, of_watched = medians([seconds_of(meter) for meter in meters[True]])
        bare, of_bare = medians([seconds_of(meter) for meter in meters[False]])
        print(f"  {name:<5} {watched:7.3f} s watched ({of_watched})  {bare:7.3f} s not watched ({of_bare})", end="")
        print(f"  ratio {watched / bare:.3f}")


def medians(runs: list[list[float]]) -> tuple[float, str]:
    """Return the median of all steps, and the range of the medians of single runs: the noise of the machine."""
    of_runs = [statistics.median(seconds) for seconds in runs]
    return statistics.median([s for seconds in runs for s in seconds]), f"runs {min(of_runs):.3f}-{max(of_runs):.3f}"


def show_own(config: RunConfig, of_processes: float, folder: Path) -> None:
    """Measure the CPU time of watching alone. of_processes: CPU-seconds per second of sentinel and guard."""
    num_processes = 1 + config.env.num_workers + config.rollout.num_workers + config.actor.num_workers
    telemetry, lines = Telemetry("env/0"), JsonLines(folder / "board.jsonl")
    of_beat = cpu_seconds(lambda: lines.write(status_record(telemetry.status())))
    lines.close()
    watchdog = Watchdog(config, folder, telemetry)
    statuses = [Telemetry(f"env/{rank}").status() for rank in range(num_processes)]
    of_board = cpu_seconds(lambda: (watchdog.board.put(statuses), watchdog.expectations()))
    per_second = {
        "sentinel and guard": of_processes,
        f"{num_processes} heartbeats": num_processes * of_beat / config.watchdog.heartbeat_s,
        "board": BOARDS_PER_S * of_board,
    }
    cores = os.cpu_count() or 1
    print(f"watching itself: {100 * sum(per_second.values()) / cores:.3f} % of {cores} cores")
    for name, seconds in per_second.items():
        print(f"  {name:<20} {1000 * seconds:7.2f} ms of CPU a second")


class Meter(threading.Thread):
    """Reads, inside its context, the CPU time of all descendants whenever the run in `run_dir` ends a step.

    wall_s, cpu_s: seconds of the steps after the warm-up. watchers_share: CPU-seconds a second of those that watch.
    """

    def __init__(self, run_dir: Path):
        super().__init__(daemon=True)
        self._run_dir = run_dir
        self._is_over = threading.Event()
        self._used: dict[int, float] = {}  # pid -> CPU-seconds; of processes that have ended as well
        self._watchers: set[int] = set()
        self._at: list[tuple[float, float]] = []  # CPU-seconds of all and of the watchers at the end of a step
        self.wall_s: list[float] = []

    @property
    def cpu_s(self) -> list[float]:
        """CPU time of all processes, step by step."""
        return [after[0] - before[0] for before, after in zip(self._at, self._at[1:], strict=False)][WARM_UP:]

    @property
    def watchers_share(self) -> float:
        """CPU time over all observed steps."""
        return (self._at[-1][1] - self._at[0][1]) / sum(self.wall_s)

    def run(self) -> None:
        """Check ten times a second whether a step has ended."""
        metrics = self._run_dir / "metrics.jsonl"
        while not self._is_over.wait(0.1):
            done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
            if done > len(self._at):
                self._look()
                self._at.append((sum(self._used.values()), sum(self._used[pid] for pid in self._watchers)))

    def _look(self) -> None:
        for process in psutil.Process().children(recursive=True):
            try:
                cpu = process.cpu_times()
                self._used[process.pid] = cpu.user + cpu.system
                if any(name in process.cmdline() for name in WATCHERS):
                    self._watchers.add(process.pid)
            except psutil.Error:  # it has ended meanwhile
                continue

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join(timeout=10)
        self.wall_s = [line["step_s"] for line in read_metrics(self._run_dir)[WARM_UP:]]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the mean CPU time of this process for one call."""
    work()
    start = time.process_time()
    for _ in range(REPEATS):
        work()
    return (time.process_time() - start) / REPEATS


if __name__ == "__main__":
    main()
