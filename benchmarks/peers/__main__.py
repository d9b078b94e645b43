"""rlrun beside RLinf on one workload: `python -m benchmarks.peers [rounds=N] [iterations=N] [only=A,B]`.

HalfCheetah-v5, 16 envs x 64 control steps an iteration, PPO with 4 epochs of minibatches of 256, networks of two layers
of 256; two cores. RLinf runs from its PyPI package in a virtual environment of its own, in turn with rlrun, so that
whatever else the machine does hits both. Told: control steps per second, collecting and learning, medians over
the iterations and then over the rounds; the ratios; and the mean return of the episodes that ended in the last third,
after the same number of steps on all sides.

`python -m benchmarks.peers cleanrl FOLDER` runs rlrun beside CleanRL: benchmarks/peers/cleanrl.py.

`only` names sides by how they begin: `only="rlrun on Ray,RLinf"`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import cleanrl, workload
from benchmarks.peers.environments import python_of

ROUNDS, ITERATIONS = 5, 100
HERE = Path(__file__).parent
RLRUN = ["run=halfcheetah", "evaluation.num_episodes=2", "logging.video_episodes=0", "checkpoint.every_steps=100000"]
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Side:
    """One arrangement. Example: Side("RLinf", of_peer("rlinf", "rlinf_ppo.py", "1"))."""

    name: str
    run: Callable[[int, Path, list[str]], dict]  # iterations, an empty folder, overrides of rlrun


def main() -> None:
    """Run all in turn and print."""
    if sys.argv[1:2] == ["cleanrl"]:
        cleanrl.main(sys.argv[2:])
        return
    given = dict(word.split("=", 1) for word in sys.argv[1:] if word.split("=")[0] in ("rounds", "iterations", "only"))
    overrides = [word for word in sys.argv[1:] if word.split("=")[0] not in given]
    wanted = given.get("only", "")
    sides = [side for side in SIDES if not wanted or any(side.name.startswith(name) for name in wanted.split(","))]
    told: dict[str, list[dict]] = {side.name: [] for side in sides}
    for number in range(int(given.get("rounds", ROUNDS))):
        os.environ["PEER_SEED"] = str(number + 1)
        for side in sides:
            with tempfile.TemporaryDirectory(prefix="rlrun-peers-") as folder:
                try:
                    found = side.run(int(given.get("iterations", ITERATIONS)), Path(folder), overrides)
                except (subprocess.SubprocessError, StopIteration) as fault:
                    print(f"{side.name}: {fault}", file=sys.stderr)
                    continue
            print(f"{side.name}: {found}", file=sys.stderr)
            told[side.name].append(found)
    show(told)


def show(told: dict[str, list[dict]]) -> None:
    """A row for each side, and rlrun's ratios to it."""
    rates = {name: statistics.median(f["steps_per_second"] for f in found) for name, found in told.items() if found}
    print(f"{'':<34}{'steps/s':>9}{'rounds':>16}{'return':>8}" + "".join(f"{name:>32}" for name in OURS))
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        found = told[name]
        spread = f"{min(f['steps_per_second'] for f in found):.0f}-{max(f['steps_per_second'] for f in found):.0f}"
        returns = [f["mean_return"] for f in found if f["mean_return"] is not None]
        shown = f"{statistics.median(returns):.0f}" if returns else "-"
        ratios = "".join(f"{rates[ours] / rate:>32.2f}" if ours in rates else f"{'-':>32}" for ours in OURS)
        print(f"{name:<34}{rate:>9.0f}{spread:>16}{shown:>8}{ratios}")
    for name in told.keys() - rates.keys():
        print(f"{name:<34}did not run here")
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def of_peer(peer: str, script: str, *arguments: str) -> Callable[[int, Path, list[str]], dict]:
    """Runs a script of this folder under the peer's interpreter; arguments: threads, and what the script takes."""

    def run(num_iterations: int, folder: Path, overrides: list[str]) -> dict:
        command = [python_of(peer), HERE / script, str(num_iterations), *arguments]
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
        environment["RAY_AUTH_MODE"] = "disabled"  # Ray would else leave a token in the home folder
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("PEER ")]
        if not lines:
            raise subprocess.SubprocessError(f"{script} ended with {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(lines[-1][len("PEER ") :])

    return run


def of_rlrun(*settings: str) -> Callable[[int, Path, list[str]], dict]:
    """Runs rlrun.train itself, and reads its records."""

    def run(num_iterations: int, folder: Path, overrides: list[str]) -> dict:
        run_dir = folder / "run"
        given = [
            *RLRUN,
            f"seed={os.environ['PEER_SEED']}",
            *settings,
            *overrides,
            f"num_steps={num_iterations}",
            f"output_dir={run_dir}",
        ]
        subprocess.run([sys.executable, "-m", "rlrun.train", *given], check=True, stdout=sys.stderr, timeout=TIMEOUT_S)
        steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        episodes = [json.loads(line) for line in (run_dir / "episodes.jsonl").read_text().splitlines()]
        late = [e["episode_return"] for e in episodes if e["step"] > num_iterations - num_iterations // 3]
        seconds = [step["step_s"] for step in steps[workload.WARM_UP :]]
        return {
            "steps_per_second": workload.BATCH / statistics.median(seconds),
            "mean_return": statistics.mean(late) if late else None,
            "num_episodes": len(late),
        }

    return run


OURS = ("rlrun on Ray", "rlrun in one process", "rlrun in one process 1 thread")
SIDES = [
    Side("rlrun on Ray", of_rlrun("actor.num_threads=2")),
    Side("rlrun on Ray 1 thread", of_rlrun()),
    Side("rlrun in one process", of_rlrun("cluster.kind=local", "actor.num_threads=2")),
    Side("rlrun in one process 1 thread", of_rlrun("cluster.kind=local", "actor.num_threads=1")),
    Side("RLinf", of_peer("rlinf", "rlinf_ppo.py", "1")),
    Side("RLinf one worker of each role", of_peer("rlinf", "rlinf_ppo.py", "1")),
]

if __name__ == "__main__":
    main()
