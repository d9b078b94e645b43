"""A run follows its schedule of learning rates, also after a resume; bounds of advantages and returns hold."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlrun
from rlrun.observability.run_files import read_metrics


def test_a_run_follows_its_schedule_over_a_resume(tmp_path: Path) -> None:
    overrides = [
        *("run=cartpole", "cluster.kind=local", "env.num_envs=2", "algorithm.horizon=8", "actor.micro_batch_size=16"),
        *("algorithm.global_batch_size=16", "env.max_control_steps=8", "evaluation.num_episodes=2", "actor.lr=0.001"),
        *("num_steps=4", "checkpoint.every_steps=1", "actor.lr_schedule=linear", "actor.min_lr_ratio=0.2"),
        *("algorithm.clip_advantages=0.5", "algorithm.clip_returns=1.5", f"output_dir={tmp_path}"),
    ]
    rlrun.run(rlrun.load_config([*overrides, "max_minutes=0.00001"]))  # one step
    assert len(read_metrics(tmp_path)) == 1
    rlrun.run(rlrun.load_config(overrides))
    lines = read_metrics(tmp_path)
    assert [line["lr"] for line in lines] == pytest.approx([0.001, 0.0008, 0.0006, 0.0004])
    assert all(abs(line["return_mean"]) <= 1.5 for line in lines)
