"""What the pipe to a simulator in another interpreter costs: `python -m benchmarks.pipe [key=value …]`.

Whole training runs of the embedded world, in turn with the simulator in the env workers' own processes and in a second
virtual environment that has no torch, from the same warm start. Prints the throughput of both, their ratio, and whether
what was learned is the same to the last bit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

NUM_STEPS = 10  # of each run; the first two warm up
REPEATS = 3
NEEDED = ("msgpack", "numpy", "mujoco", "bddl")  # in the simulator's environment


def main() -> None:
    """Build the second environment, run both in turn, print."""
    os.environ |= {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="rlrun-pipe-") as folder:
        python = second_environment(Path(folder) / "venv")
        modes = {"in process": [], "through the pipe": [f"placement.nodes={{here: {{python: '{python}'}}}}"]}
        runs: dict[str, list[list[dict]]] = {mode: [] for mode in modes}
        for i in range(REPEATS):
            order = list(modes) if i % 2 == 0 else list(modes)[::-1]  # a machine that warms up favours nobody
            for mode in order:
                runs[mode].append(train(Path(folder), f"{mode.replace(' ', '-')}-{i}", [*sys.argv[1:], *modes[mode]]))
    pace = {mode: [steps_per_second(run) for run in runs[mode]] for mode in modes}
    for mode, values in pace.items():
        told = ", ".join(f"{value:.0f}" for value in values)
        print(f"{mode:<17} {statistics.median(values):7.0f} control steps/s, median of {told}")
    here, apart = (statistics.median(pace[mode]) for mode in modes)
    print(f"{'ratio':<17} {apart / here:7.2f}")
    learned = {json.dumps([learning(step) for step in run]) for mode in modes for run in runs[mode]}
    print(
        "learned           "
        + ("the same, to the last bit" if len(learned) == 1 else f"{len(learned)} DIFFERENT results")
    )


def second_environment(folder: Path) -> Path:
    """A real virtual environment with what the embedded world needs."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    constraints = Path(__file__).resolve().parents[1] / "constraints.txt"
    subprocess.run([python, "-m", "pip", "install", "-qq", "-c", constraints, *NEEDED], check=True)
    has_torch = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    assert not has_torch, "the second environment sees the first one's packages"
    return python


def train(folder: Path, name: str, overrides: list[str]) -> list[dict]:
    """The metrics of every step of one run of the real program."""
    run_dir = folder / name
    settings = [f"output_dir={run_dir}", f"cache_dir={folder}/cache", f"num_steps={NUM_STEPS}"]
    settings += ["evaluation.num_episodes=2", "logging.video_episodes=0", "checkpoint.every_steps=1000"]
    subprocess.run([sys.executable, "-m", "rlrun.train", *overrides, *settings], check=True, stdout=sys.stderr)
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def steps_per_second(run: list[dict]) -> float:
    """Control steps of whole training steps, simulation, inference, update and sync, after the warm-up."""
    steps = run[2:]
    num_steps = sum(step["env_steps_per_second"] * step["step_s"] for step in steps)
    return num_steps / sum(step["step_s"] for step in steps)


def learning(step: dict) -> dict:
    """What a step came to, without what a clock says."""
    return {k: v for k, v in step.items() if not k.endswith(("_s", "per_second")) and not k.startswith("busy_")}


if __name__ == "__main__":
    main()
