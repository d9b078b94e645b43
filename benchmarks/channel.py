"""What encryption costs between env workers and policy servers: `python -m benchmarks.channel [rounds=N]`.

A policy client in this process, a policy server in another one, whose policy takes no time. Told for each link and each
kind of authentication: milliseconds of a round trip of HalfCheetah's observations (16 rows, 1 KB), and GB/s of camera
frames (16 rows of 512 x 512 pixels, 12.6 MB an observation); and of both processes together the processor time, which
a busy machine hardly changes: milliseconds a round trip, seconds per GB. ipc is the Unix socket within a node, tcp is
loopback, so what a network adds is left out. A run always has keys; without them, the table shows what they cost.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil

from rlrun.channel.batcher import Pipeline
from rlrun.channel.client import PolicyClient
from rlrun.channel.connection import ServerAddress
from rlrun.channel.keys import CurveKeys, Token
from rlrun.channel.server import PolicyServer
from rlrun.data.messages import ActionChunk, Frames, Observation
from rlrun.observability.telemetry import Telemetry

ROUNDS = 5
NUM_ROWS, NUM_NUMBERS, FRAME_SIZE = 16, 17, 512
NUM_SMALL, NUM_LARGE = 300, 10  # observations a round


@dataclass(frozen=True)
class NoKeys:
    """Both halves of no authentication at all."""

    @property
    def client(self) -> NoKeys:
        return self

    def apply(self, socket: Any) -> None:
        """Leave the socket as it is."""

    def admits(self, mechanism: bytes, credentials: Any) -> bool:
        return True


KEYS: dict[str, Callable[[], Any]] = {"curve": CurveKeys, "token": Token, "none": NoKeys}


def main() -> None:
    """Measure all and print the table."""
    rounds = next((int(word.partition("=")[2]) for word in sys.argv[1:] if word.startswith("rounds=")), ROUNDS)
    print(
        "| link | keys | round trip, ms | processor, ms | camera frames, GB/s | processor, s/GB |\n" + 6 * "|---" + "|"
    )
    for link in ("ipc", "tcp"):
        for keys in KEYS:
            columns = zip(*(measured(link, keys) for _ in range(rounds)), strict=True)
            cells = [f"{statistics.median(column):.2f}" for column in columns]
            print(f"| {' | '.join([link, keys, *cells])} |", flush=True)
    print(f"medians of {rounds} rounds; load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def measured(link: str, keys: str) -> tuple[float, float, float, float]:
    """The numbers of a row."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, keys), daemon=True)
    process.start()
    try:
        address: ServerAddress = here.recv()
        node = "here" if link == "ipc" else "elsewhere"
        client = PolicyClient(0, Telemetry("env/0"), node, 10.0, 60.0)
        small, large = observation(0), observation(FRAME_SIZE)
        times = []
        for collection, (asked, count) in enumerate(((small, 10), (small, NUM_SMALL), (large, NUM_LARGE))):
            here.send(collection + 1)
            started, busy_s = time.perf_counter(), processor_s(process.pid)
            client.run(episodes(asked, count), address, "rollout/0", collection + 1)
            elapsed_s = time.perf_counter() - started
            times.append((elapsed_s / count, (processor_s(process.pid) - busy_s) / count))
        client.close()
    finally:
        process.kill()
        process.join(timeout=10)
    _, (small_s, small_busy_s), (large_s, large_busy_s) = times  # the first run connects
    gigabytes = large.frames.images.nbytes / 1e9
    return 1000 * small_s, 1000 * small_busy_s, gigabytes / large_s, large_busy_s / gigabytes


def processor_s(server: int | None) -> float:
    """Processor time so far of this process and the server's."""
    there = psutil.Process(server).cpu_times()
    return time.process_time() + there.user + there.system


def episodes(asked: Observation, count: int) -> Generator[Observation, ActionChunk, None]:
    """Sends the same observation again and again."""
    for _ in range(count):
        yield asked


def observation(size: int) -> Observation:
    """Of 16 envs. size: pixels of the pictures' sides; 0: there are none."""
    images = np.zeros((NUM_ROWS, int(size > 0), size, size, 3), np.uint8)
    frames = Frames(images, np.zeros((NUM_ROWS, NUM_NUMBERS), np.float32), ("run",) * NUM_ROWS)
    return Observation(0, frames, np.arange(NUM_ROWS, dtype=np.uint64), 1.0, None)


def serve(pipe: Connection, keys: str) -> None:
    """A policy server in a process of its own, until it is killed."""
    numbers, telemetry = np.zeros((NUM_ROWS, 6), np.float32), Telemetry("rollout/0")
    chunk = ActionChunk(numbers[:, None], numbers, numbers, numbers[:, 0], None, 0)
    pipeline: Pipeline = Pipeline(
        lambda observations: [chunk] * len(observations), lambda: 0, telemetry, 1, threading.Lock(), 60.0
    )
    server = PolicyServer(pipeline, "127.0.0.1", "here", KEYS[keys](), 10.0, telemetry, KEYS[keys]())
    pipe.send(server.address)
    for collection in iter(pipe.recv, None):
        server.open(collection, {0})


if __name__ == "__main__":
    main()
