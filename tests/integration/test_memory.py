"""Nothing grows: 200 training steps on Ray, resident memory of every process measured after the warm-up and at the end.

Trajectories, observations and weights of a step are so large here that keeping those of every step goes at least three
times beyond the limit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.edges.spaces import Spaces
from rlrun.policies.actor_critic.policy import ActorCriticPolicy

NUM_STEPS = 200
WARM, LATE = (60, 100), (160, 200)  # training steps whose median memory is compared
LIMIT_BYTES = 3_000_000  # an allocator's whims; 30 kB in each of the 100 steps between
LIMITS_MB = {"driver/0": 300, "env/0": 250}
RUN = [
    *("run=halfcheetah", "env.num_envs=32", "algorithm.horizon=16", "algorithm.update_epochs=1"),
    *("algorithm.global_batch_size=256", "env.max_control_steps=64", "evaluation.num_episodes=2"),
    *("evaluation.every_steps=50", "checkpoint.every_steps=50", "logging.video_episodes=0"),
    *("logging.tensorboard=false", f"num_steps={NUM_STEPS}", "watchdog.heartbeat_s=0.1"),
]


HALF_CHEETAH = Spaces(6, None, (-1.0,) * 6, (1.0,) * 6, num_proprio=17, num_images=0)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """Return the folder of a run that starts from a policy folder."""
    root = tmp_path_factory.mktemp("long")
    config = load([*RUN, f"output_dir={root}/run"])
    ActorCriticPolicy.new(config.policy, config.env.image_size, HALF_CHEETAH, config.seed).save(root / "policy")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlrun.train", *RUN, f"policy.path={root}/policy", f"output_dir={root}/run"]
    subprocess.run(command, check=True, timeout=280, env=environment, stdout=subprocess.DEVNULL)
    return root / "run"


@pytest.fixture(scope="module")
def resident(run_dir) -> dict[str, tuple[float, float]]:
    """Worker -> median resident bytes after the warm-up, and at the end."""
    ends = [line["time_s"] for line in lines(run_dir / "metrics.jsonl")]
    assert len(ends) == NUM_STEPS
    found = {}
    for path in (run_dir / "board").glob("*.jsonl"):
        beats = [(beat["time_s"], beat["host_memory_bytes"]) for beat in lines(path)]
        role, _, rank = path.stem.rpartition("-")
        found[f"{role}/{rank}"] = tuple(
            statistics.median(held for when, held in beats if ends[first] <= when <= ends[last - 1])
            for first, last in (WARM, LATE)
        )
    return found


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("worker", ["driver/0", "env/0", "rollout/0", "actor/0"])
def test_no_process_grows(resident, worker) -> None:
    warm, late = resident[worker]
    assert late - warm < LIMIT_BYTES, f"{worker}: {warm / 1e6:.1f} MB after the warm-up, {late / 1e6:.1f} MB at the end"


@pytest.mark.long
@pytest.mark.parametrize("worker", LIMITS_MB)
def test_processes_stay_small(resident, worker) -> None:
    assert resident[worker][1] < 1e6 * LIMITS_MB[worker]
