"""SAC and RLPD as a whole run: they collect, learn, take demonstrations from the expert, and resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlrun.train import main

pytestmark = pytest.mark.integration

SMALL = (
    *("cluster.kind=local", "num_steps=3", "algorithm.horizon=8", "algorithm.global_batch_size=16", "env.num_envs=2"),
    *("evaluation.num_episodes=2", "env.max_control_steps=120", "logging.video_episodes=0", "checkpoint.every_steps=2"),
)


def trained(folder: Path, *overrides: str) -> list[dict]:
    """Return the metrics of every step of a new run."""
    return ended(folder, *SMALL, f"output_dir={folder}", f"cache_dir={folder.parent}/cache", *overrides)


def ended(folder: Path, *arguments: str) -> list[dict]:
    """Return the metrics of every step of a run that ended well."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert not ended.value.code
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_sac_learns_from_what_it_collects_one_row_at_a_time(tmp_path: Path) -> None:
    own = [f"algorithm.sac.{one}" for one in ("warmup=10", "update_ratio=0.5", "hidden_sizes=[8]")]
    world = ["env.gymnasium.id=Pendulum-v1", "env.num_envs=1", "algorithm.global_batch_size=8"]
    steps = trained(tmp_path / "run", "run=halfcheetah_sac", *world, *own)
    assert [line["num_optimizer_steps"] for line in steps] == [0, 3, 4]  # half of 24 - 10 transitions
    assert [line["num_chunk_steps"] for line in steps] == [8, 8, 8]
    assert steps[-1]["critic_loss"] > 0 and steps[-1]["num_nonfinite"] == 0


def test_rlpd_takes_demonstrations_of_the_expert_in_a_resumed_run_too(tmp_path: Path) -> None:
    own = [f"algorithm.rlpd.{one}" for one in ("warmup=0", "update_ratio=0.25", "critic_steps=2", "hidden_sizes=[8]")]
    steps = trained(tmp_path / "run", "run=mountain_car_rlpd", "demos.num_episodes=2", *own)
    assert [line["num_optimizer_steps"] for line in steps] == [2, 2, 2]
    (demos,) = (tmp_path / "cache").glob("demos-*")
    features = json.loads((demos / "meta" / "info.json").read_text())["features"]
    assert {"next.reward", "next.done"} <= features.keys()
    again = ended(tmp_path / "run", f"resume={tmp_path}/run", "num_steps=4")
    assert [line["step"] for line in again] == [1, 2, 3, 4] and again[-1]["num_optimizer_steps"] == 2
