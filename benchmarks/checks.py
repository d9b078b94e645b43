"""What the checks of messages, weights and simulators cost: `python -m benchmarks.checks [key=value …]`.

A real run in one process, in which every check is timed where it is called. Printed is the time of each in a training
step, and its share of the step. The process does nothing else meanwhile, so that a share here is an upper bound: on Ray
the checks of several workers run side by side.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import rlrun
from rlrun.actor.update_metrics import WeightChange
from rlrun.edges import buckets
from rlrun.edges.actions import ActionChunk, AnswerCheck
from rlrun.edges.incoming_weights import ArrivedWeights
from rlrun.edges.reports import CollectedCheck
from rlrun.edges.tally import StepTally
from rlrun.edges.trajectories import TrajectoryCheck
from rlrun.envs import restarting_env
from rlrun.observability.run_files import read_metrics
from rlrun.training.step_checks import StepChecks
from rlrun.workers import rollout_worker

WARM_UP, STEPS = 2, 10
CHECKS: dict[str, tuple[tuple[Any, str], ...]] = {
    "observations, at the rollout worker": ((rollout_worker, "check_observation"),),
    "answers, at the env worker": ((AnswerCheck, "__call__"),),
    "seals of answers, at the rollout worker": ((ActionChunk, "answer"),),
    "results of simulators": ((restarting_env, "check_result"), (restarting_env, "check_frames")),
    "frozen pictures, actions outside": ((StepTally, "add"),),
    "trajectories, at the actor worker": ((TrajectoryCheck, "__call__"),),
    "episodes and counts, at the driver": ((CollectedCheck, "__call__"),),
    "change of the weights": ((WeightChange, "__init__"), (WeightChange, "norm")),
    "checksums of buckets, at both ends": ((buckets, "checksum"), (buckets, "checksum")),
    "weights in use": ((ArrivedWeights, "add"), (ArrivedWeights, "require")),
    "finished steps, at the driver": ((StepChecks, "check"),),
}


def main() -> None:
    """Run some steps with timed checks, and print the table."""
    spent: Counter[str] = Counter()
    after: list[Counter[str]] = []  # `spent` after each step
    for name, places in CHECKS.items():
        for owner, attribute in places:
            setattr(owner, attribute, timed(name, owner.__dict__[attribute], spent))
    judge = StepChecks.check
    StepChecks.check = lambda *arguments: (judge(*arguments), after.append(spent.copy()))[0]  # type: ignore[method-assign]
    own = ["cluster.kind=local", "actor.num_workers=1", f"num_steps={WARM_UP + STEPS}", "evaluation.num_episodes=1"]
    quick = ["demos.num_episodes=8", "sft.num_steps=10", "sft.lr_warmup_steps=1", "logging.tensorboard=false"]
    with tempfile.TemporaryDirectory(prefix="rlrun-checks-") as folder:
        places = [f"output_dir={folder}/run", f"cache_dir={folder}/cache", "logging.verbosity=quiet"]
        rlrun.run(rlrun.load_config([*own, *quick, *places, *sys.argv[1:]]))
        step_s = sum(line["step_s"] for line in read_metrics(Path(folder) / "run")[WARM_UP:])
    of_steps = {name: after[-1][name] - after[WARM_UP - 1][name] for name in CHECKS}
    print(f"{'check':<42} {'ms a step':>10} {'share':>8}")
    for name, seconds in [*of_steps.items(), ("all", sum(of_steps.values()))]:
        print(f"{name:<42} {1000 * seconds / STEPS:>10.2f} {seconds / step_s:>8.3%}")
    print(
        f"of {step_s / STEPS:.2f} s a step; load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def timed(name: str, original: Any, spent: Counter[str]) -> Any:
    """Return the same function or class method, which adds its time to `spent`."""
    function = original.__func__ if isinstance(original, classmethod) else original

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent[name] += time.perf_counter() - began

    return classmethod(call) if isinstance(original, classmethod) else call


if __name__ == "__main__":
    main()
