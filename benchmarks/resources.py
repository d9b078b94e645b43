"""Memory, use of the second core, and start time: `python -m benchmarks.resources [only=memory,cores,start]`.

memory: 200 training steps of a small run on Ray: resident memory of driver and env workers, and whether it grows from
the second quarter of the run to the last; of the default run the most, beside the frames that an env worker holds, and
the object store's high-water mark (pages that it ever touched) beside the plan's figure. cores: env workers of the
default run simulate alone with given actions, in one process and in two at a time. start: from the command to its
output, and to the first simulated step of the default run. Bytecode is cached, as by default.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psutil

from rlrun.config.loader import load
from rlrun.observability.run_files import TIMELINE, read_json_lines
from rlrun.observability.timeline import read_events

NUM_STEPS = 200
ROUNDS = 5
SECONDS = 4.0  # of one simulation alone
SMALL = [
    *("run=halfcheetah", f"num_steps={NUM_STEPS}", "evaluation.num_episodes=2", "logging.video_episodes=0"),
    *(
        "checkpoint.every_steps=50",
        "watchdog.heartbeat_s=0.5",
        "algorithm.horizon=16",
        "algorithm.global_batch_size=128",
    ),
    "actor.micro_batch_size=128",
]
BRIEF = ["num_steps=4", "evaluation.num_episodes=2", "logging.video_episodes=0", "watchdog.heartbeat_s=0.5"]


def main() -> None:
    """Run the requested measurements and print them."""
    os.environ |= {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    wanted = next((word.partition("=")[2] for word in sys.argv[1:] if word.startswith("only=")), "memory,cores,start")
    with tempfile.TemporaryDirectory(prefix="rlrun-resources-") as folder:
        for part in wanted.split(","):
            {"memory": memory, "cores": cores, "start": start}[part](Path(folder))
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


# --- memory -------------------------------------------------------------------------------------


def memory(folder: Path) -> None:
    """Print resident sets over a long run, and the object store of the default run."""
    resident = watched(folder / "small", [*SMALL])[0]
    for worker, limit_mb in (("driver/0", 300), ("env/0", 300), ("rollout/0", None), ("actor/0", None)):
        megabytes = [number / 1e6 for number in resident[worker]]
        quarter = len(megabytes) // 4
        early, late = (statistics.median(part) for part in (megabytes[quarter : 2 * quarter], megabytes[-quarter:]))
        goal = f"goal: below {limit_mb}" if limit_mb else ""
        print(f"{worker:<10} {late:6.0f} MB, {100 * (late / early - 1):+5.1f} % in {NUM_STEPS} steps   {goal}")
    resident, store = watched(folder / "default", [*BRIEF, f"cache_dir={folder}/cache"])
    figure, frames = planned_store_bytes(), held_frame_bytes()
    for worker, limit_mb in (("driver/0", 300.0), ("env/0", 300 + frames / 1e6)):
        print(f"{worker:<10} {max(resident[worker]) / 1e6:6.0f} MB at most in the default run   wanted: {limit_mb:.0f}")
    print(f"object store {store / 1e6:.1f} MB touched at most, {figure / 1e6:.1f} MB planned   wanted: never over")


def watched(run_dir: Path, overrides: list[str]) -> tuple[dict[str, list[int]], int]:
    """Return resident bytes over time by worker, from their own files, and the object store's touched bytes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rlrun.train", *overrides, f"output_dir={run_dir}"], stdout=sys.stderr
    )
    store = 0
    while process.poll() is None:
        store = max(store, touched_bytes(psutil.Process(process.pid)))
        time.sleep(0.5)
    assert process.returncode == 0
    resident = {}
    for path in (run_dir / "board").glob("*.jsonl"):
        role, _, rank = path.stem.rpartition("-")
        resident[f"{role}/{rank}"] = [beat["host_memory_bytes"] for beat in read_json_lines(path)]
    return resident, store


def touched_bytes(driver: psutil.Process) -> int:
    """Return the bytes of the object store of this driver's Ray: those of its deleted file in shared memory."""
    try:
        raylets = [child for child in driver.children(recursive=True) if child.name() == "raylet"]
        links = [link for raylet in raylets for link in Path(f"/proc/{raylet.pid}/fd").iterdir()]
        files = {(s.st_dev, s.st_ino): s for link in links if "plasma" in os.readlink(link) for s in [link.stat()]}
    except (psutil.Error, OSError):  # it is just starting or ending
        return 0
    return sum(512 * found.st_blocks for found in files.values())


def held_frame_bytes() -> float:
    """Frames of an env worker of the default run: its trajectory, the shards cut from it, and these in the store."""
    from rlrun.placement.step_cost import step_bytes
    from rlrun.placement.workload import Workload

    config = load([])
    return 3 * step_bytes(Workload(config)).trajectories / config.env.num_workers


def planned_store_bytes() -> float:
    """Return the planned bytes of a training step of the default run."""
    from rlrun.placement.budget import budget
    from rlrun.placement.planner import plan
    from rlrun.placement.this_machine import known_inventory
    from rlrun.placement.workload import Workload

    work = Workload(load([]))
    inventory = known_inventory(work.config)
    return sum(store.needed_bytes for store in budget(work, plan(work, inventory), inventory).stores)


# --- cores --------------------------------------------------------------------------------------


def cores(folder: Path) -> None:
    """Print control steps per second of one env worker, and of two in parallel."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for num_workers, found in rates.items():
            found.append(simulated(num_workers, folder))
    one, two = (statistics.median(found) for found in rates.values())
    print(f"1 env worker  {one:7.0f} control steps/s, simulation alone, median of {ROUNDS}")
    print(f"2 env workers {two:7.0f} control steps/s")
    print(f"ratio         {two / one:7.2f}   wanted: at least 1.8")


def simulated(num_workers: int, folder: Path) -> float:
    """Return control steps per second of several processes together."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(num_workers), context.Queue()
    processes = [
        context.Process(target=simulate, args=(rank, barrier, results, str(folder))) for rank in range(num_workers)
    ]
    for process in processes:
        process.start()
    rate = sum(results.get(timeout=300) for _ in processes)
    for process in processes:
        process.join(60)
    return rate


def simulate(rank: int, barrier: Barrier, results, folder: str) -> None:
    """Send the rate of one env worker of the default run with a policy that answers immediately."""
    import numpy as np

    from rlrun.edges.actions import ActionChunk
    from rlrun.system.telemetry import Telemetry
    from rlrun.workers.env_worker import EnvWorker

    config = load([f"output_dir={folder}"])
    worker = EnvWorker(config, rank, Telemetry(f"env/{rank}"))
    worker.load()
    low, high = worker.env.spaces.limits
    shape = (config.policy.num_action_chunks, len(low))
    middle = np.tile((low + high) / 2, (shape[0], 1)).astype(np.float32)

    def answered(observation) -> ActionChunk:
        rows = len(observation.frames)
        tokens = np.zeros((rows, shape[0] * shape[1]), np.uint8)
        values, final = np.zeros(rows, np.float32), observation.final_frames
        finals = None if final is None else np.zeros(len(final), np.float32)
        chosen = np.tile(middle, (rows, 1, 1)), tokens, tokens.astype(np.float32), values
        return ActionChunk.answer(observation, *chosen, finals, 0)

    def collect(step: int) -> int:
        talk, answer = worker.collect(step), None
        while True:
            try:
                answer = answered(talk.send(answer))
            except StopIteration as finished:
                return finished.value[0].num_control_steps

    collect(0)
    barrier.wait(timeout=300)
    began, steps, step = time.monotonic(), 0, 1
    while time.monotonic() - began < SECONDS:
        steps, step = steps + collect(step), step + 1
    results.put(steps / (time.monotonic() - began))


# --- start --------------------------------------------------------------------------------------


def start(folder: Path) -> None:
    """Return the seconds until something exists."""
    for words, wanted in ((["rlrun.train", "--help"], "0.5"), (["rlrun.plan"], "1")):
        seconds = []
        for _ in range(ROUNDS):
            began = time.monotonic()
            subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.monotonic() - began)
        print(f"{' '.join(words):<30} {statistics.median(seconds):6.2f} s   wanted: {wanted}")
    first: dict[str, list[float]] = {"without anything cached": [], "with the warm start cached": []}
    for number in range(ROUNDS):
        for name, found in first.items():
            found.append(first_step(folder / f"start-{number}-{name.split()[0]}", folder / f"cache-{number}"))
    for name, found in first.items():
        print(f"first simulated step, {name:<27} {statistics.median(found):6.1f} s   wanted: 15")


def first_step(run_dir: Path, cache: Path) -> float:
    """Measure from the command to the first simulated step of the default run."""
    began = time.time()
    words = [*BRIEF, "demos.num_episodes=8", "sft.num_steps=10", "sft.lr_warmup_steps=1", f"cache_dir={cache}"]
    subprocess.run(
        [sys.executable, "-m", "rlrun.train", *words, f"output_dir={run_dir}"], check=True, stdout=sys.stderr
    )
    events = read_events(run_dir / TIMELINE)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    simulated = [
        event["ts"] / 1e6
        for event in events
        if event["ph"] == "X" and names[event["pid"]].startswith("env/")
        if event["cat"] in ("simulate", "record demos")
    ]
    return min(simulated) - began


if __name__ == "__main__":
    main()
