"""How far a training step is from the machine's floor: `python -m benchmarks.loop [rounds=N] [steps=N] [key=value …]`.

The floor is the CPU-seconds that one step's simulation, inference and update take when each runs alone in a
tight loop on one thread, over the number of cores. The step is the real program's, on Ray, with everything
between: transport, batching, gathering, weights, logging; once with `rlrun.train`, once with `rlrun.train_async`.
Each round takes the floor between the two programs, since machines change their speed within minutes; told are the
ratios of each round and their medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rlrun.config.loader import load

PROGRAMS = ("train", "train_async")
ROUNDS = 5
NUM_STEPS = 12  # of the real run; the first two warm up
REPEATS = 5


def main() -> None:
    """Run the rounds and print the tables."""
    os.environ |= {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}  # before torch and Mesa are loaded
    given = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith(("rounds=", "steps=")))
    num_steps = int(given.get("steps", NUM_STEPS))
    overrides = [word for word in sys.argv[1:] if word.split("=")[0] not in given]
    ratios = []
    for number in range(int(given.get("rounds", ROUNDS))):
        with tempfile.TemporaryDirectory(prefix="rlrun-loop-") as folder:
            ratios.append(one_round(Path(folder), overrides, num_steps))
        print(f"round {number + 1}: " + ", ".join(f"{name} {value:.2f}" for name, value in ratios[-1].items()))
    for name in ratios[0]:
        print(f"floor/wall, {name:<12} {statistics.median(ratio[name] for ratio in ratios):6.2f}")
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def one_round(folder: Path, overrides: list[str], num_steps: int) -> dict[str, float]:
    """Floor over wall, of the training steps of both programs and of rlrun.train's collecting."""
    sync, asynchronous = PROGRAMS
    walls_s = {sync: real_steps(folder / sync, [*overrides, f"num_steps={num_steps}"], sync)}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # its memory goes before the next program runs
        alone = pool.submit(tight_loops, overrides, folder / "alone", folder / sync / "policy").result()
    walls_s[asynchronous] = real_steps(folder / asynchronous, [*overrides, f"num_steps={num_steps}"], asynchronous)
    cores = len(os.sched_getaffinity(0))
    floor_s = sum(alone.values()) / cores
    print(", ".join(f"{name} {seconds:.3f}" for name, seconds in alone.items()), f"CPU-s alone: floor {floor_s:.3f} s")
    for program, wall_s in walls_s.items():
        print(f"rlrun.{program}: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in wall_s.items()), "s wall")
    collecting_s = (alone["simulation"] + alone["inference"]) / cores
    collected_s = walls_s[sync]["sync"] + walls_s[sync]["collect"]  # rows are reset while weights travel
    return {
        **{program: floor_s / wall_s["step"] for program, wall_s in walls_s.items()},
        "collecting": collecting_s / collected_s,
    }


def real_steps(run_dir: Path, overrides: list[str], program: str) -> dict[str, float]:
    """Median wall seconds of a step and its parts, by the real program; with train_async, waiting for the batch."""
    settings = [
        f"output_dir={run_dir}",
        "evaluation.num_episodes=2",
        "checkpoint.every_steps=1000",
    ]
    subprocess.run([sys.executable, "-m", f"rlrun.{program}", *overrides, *settings], check=True, stdout=sys.stderr)
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][2:]
    return {
        name: statistics.median(step[f"{name}_s"] for step in steps) for name in ("step", "collect", "update", "sync")
    }


def tight_loops(overrides: list[str], run_dir: Path, policy: Path) -> dict[str, float]:
    """CPU-seconds of one step's three kinds of work, for all workers together, each alone."""
    import torch

    from rlrun.observability.telemetry import Telemetry
    from rlrun.workers.actor_worker import ActorWorker
    from rlrun.workers.env_worker import EnvWorker
    from rlrun.workers.rollout_worker import RolloutWorker
    from rlrun.workers.trajectory_builder import concatenate

    config = load([*overrides, f"output_dir={run_dir}"])
    torch.set_num_threads(1)
    rollout = RolloutWorker(config, 0, Telemetry("rollout/0"))
    rollout.load(str(policy), True)
    envs = [EnvWorker(config, rank, Telemetry(f"env/{rank}")) for rank in range(config.env.num_workers)]
    for env in envs:
        env.load()
    talks = [converse(env.collect(0), lambda observation: rollout.act([observation])[0]) for env in envs]
    answers = [[answer for _, answer in talk] for talk, _ in talks]
    questions = [question for talk, _ in talks for question, _ in talk]
    shards = [shard for _, (_, *parts) in talks for shard in parts if shard is not None]

    def simulate() -> None:
        for env, recorded in zip(envs, answers, strict=True):
            replies = iter(recorded)
            converse(env.collect(0), lambda _, replies=replies: next(replies))

    def infer() -> None:
        for question in questions:
            rollout.act([question])

    single = load([*overrides, f"output_dir={run_dir}", "actor.num_workers=1"])
    actor = ActorWorker(single, 0, Telemetry("actor/0"))
    actor.join("127.0.0.1", actor.free_port("127.0.0.1"), "gloo")
    actor.load(str(policy))
    batch = concatenate(shards)
    return {
        "simulation": cpu_seconds(simulate),
        "inference": cpu_seconds(infer),
        "update": cpu_seconds(lambda: actor.update(0, batch)),
    }


def converse(talk, answer: Callable) -> tuple[list[tuple], tuple]:
    """Run a conversation; returns its questions and answers, and its result."""
    heard, reply = [], None
    while True:
        try:
            question = talk.send(reply)
        except StopIteration as finished:
            return heard, finished.value
        reply = answer(question)
        heard.append((question, reply))


def cpu_seconds(work: Callable[[], object]) -> float:
    """Median CPU time of this process for one call, after a warm-up."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
