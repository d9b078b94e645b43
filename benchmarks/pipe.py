"""Cost of the pipe to a simulator in another interpreter: `python -m benchmarks.pipe [key=value …]`.

First the simulation alone: CPU-seconds of a chunk step of all rows, of both processes together, which other work on the
machine hardly moves. Then whole training runs of the embedded world, in pairs: with the simulator in the env workers'
own processes, and in a second virtual environment that has no torch, from the same warm start. Told are the throughput
of both, the median of the pairs' ratios, since a machine is faster in one minute than in the next, and whether what was
metrics are bitwise equal. With cluster.kind=local it also prints the CPU-seconds of whole runs.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil

from rlrun.config.loader import load
from rlrun.config.schema import ClusterKind
from rlrun.envs.make import make_env
from rlrun.envs.remote.remote_env import RemoteEnv
from rlrun.envs.vector_env import VectorEnv

NUM_STEPS = 7  # of each run; the first two warm up
REPEATS = 5
ROUNDS, CHUNKS = 12, 10  # of the simulation alone; an episode of the default run has 11 chunks
NEEDED = ("msgpack", "numpy", "mujoco", "bddl")  # in the simulator's environment


def main() -> None:
    """Build the second environment, run both alternately, and print."""
    os.environ |= {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
    with tempfile.TemporaryDirectory(prefix="rlrun-pipe-") as folder:
        python = second_environment(Path(folder) / "venv")
        simulation_alone(python)
        modes = {"in process": [], "through the pipe": [f"placement.nodes={{here: {{python: '{python}'}}}}"]}
        runs: dict[str, list[list[dict]]] = {mode: [] for mode in modes}
        spent: dict[str, list[float]] = {mode: [] for mode in modes}
        train(Path(folder), "warm-start", sys.argv[1:])  # which the others find in their cache
        for i in range(REPEATS):
            order = list(modes) if i % 2 == 0 else list(modes)[::-1]  # alternates sides
            for mode in order:
                before = cpu_of_children()
                runs[mode].append(train(Path(folder), f"{mode.replace(' ', '-')}-{i}", [*sys.argv[1:], *modes[mode]]))
                spent[mode].append(cpu_of_children() - before)
    pace = {mode: [steps_per_second(run) for run in runs[mode]] for mode in modes}
    for mode, values in pace.items():
        listing = ", ".join(f"{value:.0f}" for value in values)
        print(f"{mode:<17} {statistics.median(values):7.0f} control steps/s, median of {listing}")
    ratios = [apart / here for here, apart in zip(*pace.values(), strict=True)]
    listing = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{'ratio':<17} {statistics.median(ratios):7.2f} median of the pairs' {listing}")
    if load(sys.argv[1:]).cluster.kind is ClusterKind.local:  # Ray's processes are not children of this one
        here, apart = (statistics.median(spent[mode]) for mode in modes)
        print(f"whole run         {here:.1f} CPU-s in process, {apart:.1f} through the pipe, ratio {here / apart:.2f}")
    learned = {json.dumps([learning(step) for step in run]) for mode in modes for run in runs[mode]}
    print(
        "learned           "
        + ("the same, to the last bit" if len(learned) == 1 else f"{len(learned)} DIFFERENT results")
    )


def second_environment(folder: Path) -> Path:
    """Make a virtual environment with the packages of the embedded world."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    constraints = Path(__file__).resolve().parents[1] / "constraints.txt"
    subprocess.run([python, "-m", "pip", "install", "-qq", "-c", constraints, *NEEDED], check=True)
    has_torch = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    assert not has_torch, "the second environment sees the first one's packages"
    return python


def simulation_alone(python: Path) -> None:
    """Print CPU milliseconds of a chunk step with and without the pipe, and their ratio."""
    config = load(sys.argv[1:]).env
    rows = config.num_envs // config.num_workers
    envs = {"in process": make_env(config, rows), "through the pipe": make_env(config, rows, python=str(python))}
    spent: dict[str, list[float]] = {mode: [] for mode in envs}
    for _ in range(ROUNDS):
        for mode, env in envs.items():
            others = [psutil.Process(env.about["pid"])] if isinstance(env, RemoteEnv) else []
            before = cpu_seconds([psutil.Process(), *others])
            chunks(env)
            spent[mode].append((cpu_seconds([psutil.Process(), *others]) - before) / CHUNKS)
    for mode, values in spent.items():
        print(f"{mode:<17} {1000 * statistics.median(values):7.2f} CPU-ms for a chunk of {rows} rows")
    here, apart = (statistics.median(values) for values in spent.values())
    print(f"{'ratio':<17} {here / apart:7.2f}")
    for env in envs.values():
        env.close()


def chunks(env: VectorEnv) -> None:
    """Run a reset and some chunks of four control steps with mid-range actions; returns their frames."""
    rows = np.arange(env.num_envs)
    env.reset(rows, rows)
    middle = ((env.action_low + env.action_high) / 2).astype(np.float32)
    for _ in range(CHUNKS):
        env.step_chunk(np.tile(middle, (env.num_envs, 4, 1)))


def cpu_of_children() -> float:
    """Return user and system time of all descendants that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return user and system time so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def train(folder: Path, name: str, overrides: list[str]) -> list[dict]:
    """Run the real program and return the metrics of every step."""
    run_dir = folder / name
    settings = [f"output_dir={run_dir}", f"cache_dir={folder}/cache", f"num_steps={NUM_STEPS}"]
    settings += ["evaluation.num_episodes=2", "logging.video_episodes=0", "checkpoint.every_steps=1000"]
    settings += ["demos.num_episodes=8", "sft.num_steps=10", "sft.lr_warmup_steps=1"]  # it need not be good
    subprocess.run([sys.executable, "-m", "rlrun.train", *overrides, *settings], check=True, stdout=sys.stderr)
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def steps_per_second(run: list[dict]) -> float:
    """Return control steps per second of whole training steps after the warm-up."""
    steps = run[2:]
    num_steps = sum(step["env_steps_per_second"] * step["step_s"] for step in steps)
    return num_steps / sum(step["step_s"] for step in steps)


def learning(step: dict) -> dict:
    """Return the metrics of a step without times."""
    return {
        k: v for k, v in step.items() if not k.endswith(("_s", "per_second")) and not k.startswith(("busy_", "memory_"))
    }


if __name__ == "__main__":
    main()
