"""A run beside the same policy held fixed: `python -m benchmarks.learning paired FOLDER [--seeds N] key=value …`.

Trains each seed twice into FOLDER, from one warm start: once with the given keys, once with a learning rate of 0.
Training episodes of both have the same starts and the same sampling keys, so that their difference holds no luck of the
starts. A seed that is complete there is only read. Prints, for each seed, the held-out successes of the trained run and
the mean difference of training successes over ranges of steps, with its standard error over the steps of the range.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlrun.observability.run_files import EPISODES, EVALUATIONS, REPORT, read_json_lines

FIXED = ("actor.lr=0", "evaluation.every_steps=0")
FIRST_STEP = 2  # both runs act in step 1 with the warm start
RANGE_STEPS = 20


@dataclass(frozen=True)
class Difference:
    """Success of a trained run minus that of the fixed policy, over a range of training steps."""

    first: int
    last: int
    points: float  # mean over steps, in per cent of episodes
    error: float  # standard error over steps; nan for a single step

    @property
    def text(self) -> str:
        """The range and its difference. Example: "2-20: +6 ± 3"."""
        return f"{self.first}-{self.last}: {self.points:+.0f} ± {self.error:.0f}"


def main(words: Sequence[str]) -> None:
    """Train missing runs, then print the table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.learning paired",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument(
        "--fixed-steps", type=int, help="steps of the fixed runs; default: as many as the trained ones have"
    )
    given, overrides = parser.parse_known_args(words)
    fixed_keys = [*FIXED, *([f"num_steps={given.fixed_steps}"] if given.fixed_steps else [])]
    print("| seed | held-out successes at steps | against the fixed policy, points at steps |\n|---|---|---|")
    for seed in range(given.seeds):
        trained = _trained(given.folder, "trained", seed, overrides)
        fixed = _trained(given.folder, "fixed", seed, [*overrides, *fixed_keys])
        evaluations = read_json_lines(trained / EVALUATIONS)
        held_out = ", ".join(f"{one['step']}: {one['successes']}/{one['episodes']}" for one in evaluations)
        found = differences(read_json_lines(trained / EPISODES), read_json_lines(fixed / EPISODES))
        print(f"| {seed} | {held_out} | {', '.join(one.text for one in found)} |", flush=True)


def _trained(folder: Path, name: str, seed: int, keys: Sequence[str]) -> Path:
    """Return the folder of a run, trained unless it is there."""
    run_dir = folder / f"{name}_{seed}"
    if not (run_dir / REPORT).exists():
        places = [f"seed={seed}", f"cache_dir={folder / f'cache_{seed}'}", f"output_dir={run_dir}"]
        subprocess.run([sys.executable, "-m", "rlrun.train", *keys, *places], check=True, stdout=sys.stderr)
    return run_dir


def differences(trained: Iterable[Mapping], fixed: Iterable[Mapping]) -> list[Difference]:
    """Return the paired difference over all steps that both have from step 2 on, then over each range of steps.

    Raises ValueError if a step's episodes had other starts in the two runs.
    """
    ours = _by_step(trained)
    theirs = _by_step(fixed)
    steps = [step for step in sorted(ours) if step >= FIRST_STEP and step in theirs]
    by_step = np.array([_difference(step, ours[step], theirs[step]) for step in steps])
    parts = [
        [step for step in steps if begin < step <= begin + RANGE_STEPS] for begin in range(0, steps[-1], RANGE_STEPS)
    ]
    ranges = [steps, *parts] if len(parts) > 1 else [steps]
    return [_of(by_step, steps, part) for part in ranges]


def _by_step(episodes: Iterable[Mapping]) -> dict[int, dict[tuple[int, int], bool]]:
    """Return the success of each episode by step, and by its env and seed."""
    found: dict[int, dict[tuple[int, int], bool]] = defaultdict(dict)
    for episode in episodes:
        found[episode["step"]][episode["env"], episode["seed"]] = episode["success"]
    return found


def _difference(step: int, ours: Mapping[tuple[int, int], bool], theirs: Mapping[tuple[int, int], bool]) -> float:
    if ours.keys() != theirs.keys():
        raise ValueError(f"step {step} had other starts in the two runs: they are not paired")
    return 100 * float(np.mean([float(ours[key]) - float(theirs[key]) for key in ours]))


def _of(by_step: np.ndarray, steps: Sequence[int], part: Sequence[int]) -> Difference:
    values = by_step[[steps.index(step) for step in part]]
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Difference(part[0], part[-1], float(np.mean(values)), error)
