"""`python -m benchmarks.faults kills FOLDER [key=value …]` compares a run under kills with one without, bit for bit.

An env worker is killed again and again, and less often a rollout worker. A replaced worker repeats its share with the
same seeds, so that what is learned, and what the episodes did, must be equal to the last bit.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.run import SMALL, Run
from rlrun.observability.run_files import EPISODES, read_json_lines

NUM_STEPS = 40
DEADLINE_S = 3600.0
EVERY_S = 4.0  # between two kills, after the second step
VICTIMS = ("env-1", "env-0", "env-1", "rollout-0")
COMPARED = (
    *("policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm", "return_mean", "value_mean", "advantage_abs"),
    *("num_optimizer_steps", "env_steps", "num_chunk_steps", "policy_version"),
)


def runs_under_kills(folder: Path, overrides: Sequence[str]) -> None:
    """Run both, and print how they compare. Raises SystemExit with 1 if they differ."""
    overrides = [f"num_steps={NUM_STEPS}", "checkpoint.every_steps=10", *overrides]
    quiet = Run(folder / "clean", *overrides, base=SMALL)
    quiet.process.wait(timeout=DEADLINE_S)
    disturbed = Run(folder / "kills", *overrides, base=SMALL)
    kills = _kill_until_the_end(disturbed)
    clean, found = quiet.steps(), disturbed.steps()
    differing = sorted({name for one, other in zip(clean, found, strict=False) for name in _differing(one, other)})
    lost = int(sum(line["num_worker_restarts"] for line in found))
    print(f"{len(clean)} steps without kills, {len(found)} with {sum(kills.values())} kills: {kills}; {lost} replaced")
    print(
        f"metrics that differ: {', '.join(differing) or 'none'}; episodes: {_episodes(quiet) == _episodes(disturbed)}"
    )
    is_equal = not differing and len(clean) == len(found) == NUM_STEPS and _episodes(quiet) == _episodes(disturbed)
    print("equal to the last bit" if is_equal else "NOT equal")
    raise SystemExit(not is_equal)


def _kill_until_the_end(run: Run) -> dict[str, int]:
    """Kill one worker after another until the run ends. Returns the kills by worker."""
    kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)
    run.first(r"^step +2/", 0, DEADLINE_S)
    end = time.monotonic() + DEADLINE_S
    try:
        for victim in itertools.cycle(VICTIMS):
            time.sleep(EVERY_S)
            if run.process.poll() is not None or time.monotonic() > end:
                return kills
            try:
                os.kill(int((run.triggers / f"{victim}.pid").read_text()), signal.SIGKILL)
                kills[victim] += 1
            except ProcessLookupError:  # it is being replaced
                continue
    finally:
        run.end()
    return kills


def _differing(one: dict, other: dict) -> list[str]:
    return [name for name in COMPARED if one.get(name) != other.get(name)]


def _episodes(run: Run) -> list[dict]:
    """Return the valid episodes, in the order of their steps and envs."""
    found = [line for line in read_json_lines(run.run_dir / EPISODES) if not line["infra_fault"]]
    return sorted(found, key=lambda line: (line["step"], line["env"], line["seed"]))
