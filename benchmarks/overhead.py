"""Overhead between simulator, policy and optimizer: `python -m benchmarks.overhead [rounds=N] [key=value …]`.

Real runs on Ray, and the intervals that their own workers recorded in timeline.json. An env worker's collecting phase
is a chain: simulate, ask, the forward pass of its rollout worker, answer, simulate … Whatever of the chain is neither
simulator nor forward pass is overhead: packing, sockets, waiting to be scheduled, building the trajectory. Told for

* 16 envs with states and a small network (run=halfcheetah): overhead per chunk step;
* the default run: the share of a whole training step in which its last chain, the update and the sync do none of their
  own work, and the share in which weights travel;
* an empty conversation of two processes: what is left when simulator and policy cost nothing, and the same through a
  call to a Ray actor, which is Ray's floor.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.loop import real_steps
from rlrun.observability.run_files import TIMELINE
from rlrun.observability.timeline import read_events

ROUNDS = 5
WARM_UP = 2  # steps
UNSKILLED = ["demos.num_episodes=8", "sft.num_steps=10", "sft.lr_warmup_steps=1"]  # it need not be good
NUM_ROWS, NUM_NUMBERS = 16, 17  # of the empty conversation: HalfCheetah's observations
NUM_QUESTIONS = 300

Interval = tuple[float, float, str]  # start, end, name; seconds


def main() -> None:
    """Run all measurements and print them."""
    os.environ |= {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
    rounds = next((int(word.partition("=")[2]) for word in sys.argv[1:] if word.startswith("rounds=")), ROUNDS)
    overrides = [word for word in sys.argv[1:] if not word.startswith("rounds=")]
    small, whole, syncs = [], [], []
    with tempfile.TemporaryDirectory(prefix="rlrun-overhead-") as folder:
        for number in range(rounds):
            run_dir = Path(folder) / f"small-{number}"
            settings = ["run=halfcheetah", *overrides]
            real_steps(run_dir, settings, "train")
            small += [1000 * chain.overhead_s / chain.num_asked for chain in chains(run_dir)]
            run_dir = Path(folder) / f"default-{number}"
            real_steps(run_dir, [f"cache_dir={folder}/cache", *UNSKILLED, *overrides], "train")
            whole += step_overheads(run_dir)
            syncs += sync_shares(run_dir)
        empty, through_ray = empty_conversations(rounds)
    tell("16 envs, per chunk step", small, "ms", "under 2")
    tell("default run, share of a training step", [100 * share for share in whole], "%", "under 3")
    tell("default run, weight sync, share of a step", [100 * share for share in syncs], "%", "under 5")
    tell("empty conversation, per question", empty, "ms", "-")
    tell("the same by a call to a Ray actor", through_ray, "ms", "-")
    print(f"{'Ray / rlrun':<42} {statistics.median(through_ray) / statistics.median(empty):7.1f}")
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def tell(what: str, values: list[float], unit: str, wanted: str) -> None:
    """Return median, quartiles and count as text."""
    low, middle, high = statistics.quantiles(values, n=4)
    print(f"{what:<42} {middle:7.2f} {unit:<3} quartiles {low:.2f}-{high:.2f} of {len(values)}, wanted {wanted}")


class Chain:
    """The collecting phase of one env worker in one training step."""

    def __init__(self, spans: list[Interval], acts: list[Interval], start_s: float, end_s: float):
        """spans: of the env worker; acts: of its rollout worker."""
        own = [(start, end) for start, end, name in spans if name in ("simulate", "reset")]
        self.num_asked = sum(name == "wait for actions" for _, _, name in spans)
        self.end_s = max(end for _, end, _ in spans)
        passes = [(start, min(end, self.end_s)) for start, end, name in acts if name == "act" and start < self.end_s]
        # A pass may begin before its asker is said to wait: it takes the core on which the question was just sent.
        both_s = sum(overlap(mine, done) for mine in own for done in passes)
        self.work_s = sum(end - start for start, end in own + passes) - both_s
        self.overhead_s = (self.end_s - start_s) - self.work_s


def overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the seconds that two intervals have in common."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def spans_of(run_dir: Path) -> dict[str, list[Interval]]:
    """Return the closed intervals of each worker."""
    names, spans = {}, defaultdict(list)
    for event in read_events(run_dir / TIMELINE):
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            spans[event["pid"]].append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6, event["cat"]))
    return {names[pid]: sorted(found) for pid, found in spans.items()}


def inside(spans: list[Interval], phase: Interval) -> list[Interval]:
    """Return intervals cut to a phase of the driver."""
    return [(max(start, phase[0]), end, name) for start, end, name in spans if end > phase[0] and start < phase[1]]


def collecting_phases(driver: list[Interval], with_sync: bool) -> list[Interval]:
    """Of every training step after the warm-up. with_sync: and the sync before it, beside which rows are reset."""
    found = [
        (before[0] if with_sync and before[2] == "sync" else start, end, name)
        for before, (start, end, name) in itertools.pairwise(driver)
        if name == "collect"
    ]
    return found[WARM_UP:]


def chains(run_dir: Path, with_sync: bool = False) -> list[Chain]:
    """Return one entry per env worker and training step after the warm-up, ordered by rank within a step."""
    spans = spans_of(run_dir)
    ranks = sorted(int(worker.partition("/")[2]) for worker in spans if worker.startswith("env/"))
    num_rollouts = sum(worker.startswith("rollout/") for worker in spans)
    found = []
    for phase in collecting_phases(spans["driver/0"], with_sync):
        for rank in ranks:
            acts = inside(spans[f"rollout/{rank * num_rollouts // len(ranks)}"], phase)
            found.append(Chain(inside(spans[f"env/{rank}"], phase), acts, phase[0], phase[1]))
    return found


def step_overheads(run_dir: Path) -> list[float]:
    """Return the share of each training step after the warm-up in which no worker does its own work."""
    spans = spans_of(run_dir)
    num_envs = sum(worker.startswith("env/") for worker in spans)
    found, of_steps = [], chains(run_dir, with_sync=True)
    updates = [span for span in spans["driver/0"] if span[2] == "update"][WARM_UP:]
    wall_s = [json.loads(line)["step_s"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()][WARM_UP:]
    for index, updating in enumerate(updates):
        last = max(of_steps[index * num_envs : (index + 1) * num_envs], key=lambda chain: chain.end_s)
        learning_s = [
            sum(end - start for start, end, name in inside(found_, updating) if name == "update")
            for worker, found_ in spans.items()
            if worker.startswith("actor/")
        ]
        found.append(1 - (last.work_s + max(learning_s)) / wall_s[index])
    return found


def sync_shares(run_dir: Path) -> list[float]:
    """Return the share of each training step after the warm-up in which the driver waits for weights."""
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][WARM_UP:]
    return [step["sync_s"] / step["step_s"] for step in steps]


def empty_conversations(rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds per observation through the channel and through a Ray actor, in turn."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        answerer = ray.remote(num_cpus=1)(Answerer).remote()
        address = ray.get(answerer.address.remote(), timeout=60)
        mine, rays = [], []
        for number in range(rounds):
            ray.get(answerer.open.remote(number + 1), timeout=60)
            mine.append(asked_by_channel(address, number + 1))
            rays.append(asked_by_ray(answerer))
    finally:
        ray.shutdown()
    return mine, rays


def question():
    """Return HalfCheetah's observation of 16 envs."""
    from rlrun.data.messages import Frames, Observation

    states = np.zeros((NUM_ROWS, NUM_NUMBERS), np.float32)
    frames = Frames(np.zeros((NUM_ROWS, 0, 64, 64, 3), np.uint8), states, ("run",) * NUM_ROWS)
    return Observation(0, frames, np.arange(NUM_ROWS, dtype=np.uint64), 1.0, None)


def asked_by_channel(address, collection: int) -> float:
    """Milliseconds per question of an env worker whose simulator takes no time."""
    from rlrun.channel.client import PolicyClient
    from rlrun.observability.telemetry import Telemetry

    def episodes():
        for _ in range(NUM_QUESTIONS):
            yield question()

    client = PolicyClient(0, Telemetry("env/0"), "here", 10.0, 60.0)
    started = time.perf_counter()
    client.run(episodes(), address, "rollout/0", collection)
    elapsed_s = time.perf_counter() - started
    client.close()
    return 1000 * elapsed_s / NUM_QUESTIONS


def asked_by_ray(answerer) -> float:
    """Measure the same as calls to a Ray actor."""
    import ray

    started = time.perf_counter()
    for _ in range(NUM_QUESTIONS):
        ray.get(answerer.act.remote(question()), timeout=60)
    return 1000 * (time.perf_counter() - started) / NUM_QUESTIONS


class Answerer:
    """A rollout worker whose policy takes no time."""

    def __init__(self):
        from rlrun.channel.batcher import Pipeline
        from rlrun.channel.keys import CurveKeys
        from rlrun.channel.server import PolicyServer
        from rlrun.observability.telemetry import Telemetry

        telemetry, lock = Telemetry("rollout/0"), threading.Lock()
        pipeline = Pipeline(lambda observed: [self.act(o) for o in observed], lambda: 0, telemetry, 1, lock, 60.0)
        self._server = PolicyServer(pipeline, "127.0.0.1", "here", CurveKeys(), 10.0, telemetry)

    def address(self):
        """Where it listens."""
        return self._server.address

    def open(self, collection: int) -> None:
        """With env worker 0."""
        self._server.open(collection, {0})

    def act(self, observation):
        """Return six numbers for every row."""
        from rlrun.data.messages import ActionChunk

        numbers = np.zeros((NUM_ROWS, 6), np.float32)
        return ActionChunk(numbers[:, None], numbers, numbers, numbers[:, 0], None, 0)


if __name__ == "__main__":
    main()
