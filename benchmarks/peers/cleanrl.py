"""rlrun beside CleanRL's own scripts: `python -m benchmarks.peers cleanrl FOLDER [seeds=3] [only=SAC]`.

FOLDER: a checkout of CleanRL, `git clone https://github.com/vwxyzjn/cleanrl`. Its scripts run as they are, in a virtual
environment of their own, in turn with rlrun in one process; both have one thread.

SAC on Pendulum-v1: `run=halfcheetah_sac` and sac_continuous_action.py have the same networks, rates, batches and
buffer, take a step of the critics and of the policy per control step, and learn after the first 1,000. rlrun has 4
envs, CleanRL one. PPO on CartPole-v1: `run=cartpole` and ppo.py, each with its own settings.

Told: returns, and CPU seconds per control step without the start. For these each side also makes a shorter run, whose
seconds are subtracted: user and system time of the process and of the children that it waited for.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environments import python_of

SEEDS = 3
TIMEOUT_S = 7200
LAST_EPISODES = 8  # of which the mean return is told
LAST_STEPS = 10_000  # control steps, as well
OVERRIDES = (
    "cluster.kind=local",
    "evaluation.num_episodes=1",
    "logging.video_episodes=0",
    "checkpoint.every_steps=100000",
)
Episodes = list[tuple[int, float]]  # control step of the run by which each ended, and its return; in order


@dataclass(frozen=True)
class Task:
    """What both sides learn. Numbers of control steps are multiples of a training step's on both sides."""

    name: str
    script: str  # of CleanRL
    options: tuple[str, ...]  # of the script
    overrides: tuple[str, ...]  # of rlrun
    steps_of_training_step: int  # control steps of rlrun's
    steps: int
    short_steps: int  # of the run that is subtracted; both have begun to learn by then
    solved: float | None = None  # a return; told: from which episode on returns stay above it


TASKS = (
    Task(
        name="SAC",
        script="sac_continuous_action.py",
        options=("--env-id=Pendulum-v1", "--learning-starts=1000"),
        overrides=(
            "run=halfcheetah_sac",
            "env.gymnasium.id=Pendulum-v1",
            "env.max_control_steps=200",
            "algorithm.sac.warmup=1000",
            "algorithm.sac.target_entropy=-1.6931",  # CleanRL's -1 counts numbers between -2 and 2
        ),
        steps_of_training_step=64,
        steps=6_016,
        short_steps=1_216,
        solved=-400.0,
    ),
    Task(
        name="PPO",
        script="ppo.py",
        options=(),
        overrides=("run=cartpole",),
        steps_of_training_step=1_024,
        steps=61_440,
        short_steps=10_240,
    ),
)


@dataclass(frozen=True)
class Found:
    """A long and a short run of one side with one seed."""

    episodes: Episodes  # of the long run
    ms_per_step: float  # of CPU time


def main(words: Sequence[str]) -> None:
    """Run both tasks with all seeds and print; `words` follow `cleanrl` on the command line."""
    given = dict(word.split("=", 1) for word in words[1:])
    checkout = Path(words[0]).resolve() if words else Path()
    if missing := [task.script for task in TASKS if not (checkout / "cleanrl" / task.script).is_file()]:
        sys.exit(f"{checkout} is no checkout of CleanRL: it has no cleanrl/{missing[0]}.")
    python = python_of("cleanrl")
    for task in TASKS:
        if given.get("only", task.name) != task.name:
            continue
        sides: dict[str, list[Found]] = {"CleanRL": [], "rlrun": []}
        for seed in range(1, int(given.get("seeds", SEEDS)) + 1):
            sides["CleanRL"].append(_found_of_cleanrl(task, seed, checkout, python))
            sides["rlrun"].append(_found_of_rlrun(task, seed))
            print(f"{task.name}, seed {seed}: done", file=sys.stderr)
        print("\n".join(lines(task, sides)), flush=True)
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def lines(task: Task, sides: Mapping[str, Sequence[Found]]) -> list[str]:
    """Return the report of a task: a row of returns and one of CPU time for each side, and rlrun's ratio."""
    told = [f"{task.name}, {task.steps:,} control steps, seeds 1 to {len(sides['rlrun'])}"]
    for name, found in sides.items():
        if task.solved is not None:
            first = [settled(side.episodes, task.solved) for side in found]
            told.append(f"  {name:<8} returns stay above {task.solved:.0f} from episode {_row(first)}")
            last = [statistics.fmean(value for _, value in side.episodes[-LAST_EPISODES:]) for side in found]
            told.append(f"  {name:<8} mean return of the last {LAST_EPISODES} episodes {_row(last)}")
        else:
            last = [mean_of_last_steps(side.episodes, task.steps) for side in found]
            told.append(f"  {name:<8} mean return of the last {LAST_STEPS:,} control steps {_row(last)}")
    medians = {name: statistics.median(side.ms_per_step for side in found) for name, found in sides.items()}
    for name, found in sides.items():
        seconds = " ".join(f"{side.ms_per_step:.2f}" for side in found)
        told.append(f"  {name:<8} CPU per control step {medians[name]:.2f} ms ({seconds})")
    told.append(f"  ratio of the medians {medians['rlrun'] / medians['CleanRL']:.2f}")
    return told


def _row(numbers: Sequence[float | None]) -> str:
    return " ".join("never" if number is None else f"{number:.0f}" for number in numbers)


def settled(episodes: Episodes, solved: float) -> int | None:
    """Return the number, from 1, of the first episode from which all returns are above `solved`; None: the last is
    not."""
    num_above = sum(1 for _ in itertools.takewhile(lambda episode: episode[1] > solved, reversed(episodes)))
    return len(episodes) - num_above + 1 if num_above else None


def mean_of_last_steps(episodes: Episodes, steps: int) -> float:
    """Return the mean return of the episodes that ended in the last LAST_STEPS of `steps`."""
    return statistics.fmean(value for step, value in episodes if step > steps - LAST_STEPS)


def _found_of_cleanrl(task: Task, seed: int, checkout: Path, python: Path) -> Found:
    script = checkout / "cleanrl" / task.script
    with tempfile.TemporaryDirectory(prefix="rlrun-peers-") as folder:
        seconds = {}
        for steps in (task.short_steps, task.steps):
            within = Path(folder) / str(steps)
            within.mkdir()
            options = [*task.options, "--no-cuda", f"--seed={seed}", f"--total-timesteps={steps}"]
            seconds[steps] = cpu_seconds([python, script, *options], within, {"PYTHONPATH": str(checkout)})
        episodes = logged_episodes(Path(folder) / str(task.steps))
    return Found(episodes, ms_per_step(seconds))


def _found_of_rlrun(task: Task, seed: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="rlrun-peers-") as folder:
        seconds = {}
        for steps in (task.short_steps, task.steps):
            run_dir = Path(folder) / str(steps)
            given = [*task.overrides, *OVERRIDES, f"seed={seed}", f"num_steps={steps // task.steps_of_training_step}"]
            command = [sys.executable, "-m", "rlrun.train", *given, f"output_dir={run_dir}"]
            seconds[steps] = cpu_seconds(command, Path.cwd(), {})
        records = (Path(folder) / str(task.steps) / "episodes.jsonl").read_text().splitlines()
    episodes = [(e["step"] * task.steps_of_training_step, e["episode_return"]) for e in map(json.loads, records)]
    return Found(episodes, ms_per_step(seconds))


def ms_per_step(seconds: Mapping[int, float]) -> float:
    """Return CPU milliseconds per control step, of the seconds of a short and a long run by their control steps."""
    short, long = sorted(seconds)
    return 1e3 * (seconds[long] - seconds[short]) / (long - short)


def cpu_seconds(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> float:
    """Run a command with one thread; return the user and system time of it and of all children that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=True,
        stdout=sys.stderr,
        timeout=TIMEOUT_S,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def logged_episodes(folder: Path) -> Episodes:
    """Return the episodes that CleanRL logged in the only run under `folder`, where it was started."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    (run,) = (folder / "runs").iterdir()
    log = EventAccumulator(str(run), size_guidance={SCALARS: 0})  # 0: all of them
    log.Reload()
    return [(event.step, event.value) for event in log.Scalars("charts/episodic_return")]
