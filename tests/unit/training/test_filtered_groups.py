"""A run with dynamic sampling: its batches are full of signal, and a resumed run repeats it bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlrun
from rlrun.cluster.launch import Machines
from rlrun.observability.run_files import read_metrics
from rlrun.system.errors import ExitStatus
from rlrun.train_async import train_async
from rlrun.training.replay import replay
from tests.learning.test_resume import lasting

GROUP, NUM_ENVS = 2, 8
WORLD = ["run=cartpole", "env.gymnasium.id=tests.standins.pick_the_side:PickTheSide-v0", "cluster.kind=local"]
SMALL = [
    *(f"env.num_envs={NUM_ENVS}", "env.num_workers=2", "rollout.num_workers=1", "env.max_control_steps=4"),
    *("algorithm.name=grpo", f"algorithm.grpo.group_size={GROUP}", "algorithm.horizon=4", "algorithm.rollout_epochs=2"),
    *("algorithm.global_batch_size=64", "actor.micro_batch_size=64", "evaluation.num_episodes=2"),
    *("logging.tensorboard=false", "logging.video_episodes=0", "policy.kind=cnn", "checkpoint.every_steps=2"),
    *("policy.cnn.conv_channels=[4]", "policy.cnn.hidden_sizes=[8]", "env.image_size=16"),
    *("algorithm.carry_episodes=false", "policy.num_action_chunks=1"),
    "actor.lr_schedule=constant",
    "actor.lr=1e-4",  # the policy stays as undecided as it begins
]


def train(folder: Path, *keys: str) -> list[dict[str, float]]:
    rlrun.run(rlrun.load_config([*WORLD, *SMALL, f"output_dir={folder}", *keys]))
    return read_metrics(folder)


def test_batches_are_full_of_signal_and_counts_are_of_all_that_was_collected(tmp_path):
    plain = train(tmp_path / "plain", "num_steps=2")
    full = train(tmp_path / "full", "num_steps=2", "algorithm.filter_groups.enable=true", _bound(40))
    for without, metrics in zip(plain, full, strict=True):
        assert "num_groups" not in without
        assert metrics["num_chunk_steps"] == without["num_chunk_steps"] == 2 * NUM_ENVS, "an episode is one step"
        assert metrics["num_missing_groups"] == 0 < metrics["num_dropped_groups"] and metrics["num_gen_batches"] > 1
        groups = 2 * NUM_ENVS / GROUP + metrics["num_dropped_groups"]
        assert metrics["num_groups"] == 2 * NUM_ENVS / GROUP and metrics["num_episodes"] == groups * GROUP
        # before normalisation: groups without signal, whose advantages are 0, are only in the unfiltered batch
        assert without["advantage_abs"] < metrics["advantage_abs"]
        assert metrics["groups_with_signal"] == pytest.approx(metrics["num_groups"] / groups)
        assert 0 < without["groups_with_signal"] < 1 and "batch_success_rate" not in without
        assert 0 <= metrics["batch_success_rate"] <= 1
    assert full[-1]["env_steps"] == sum(metrics["num_episodes"] for metrics in full)
    lines = map(json.loads, (tmp_path / "full" / "starts.jsonl").read_text().splitlines())
    starts = [seed for line in lines if line["during"] == "training" for seed in line["seeds"]]
    assert len(starts) == full[-1]["env_steps"] and len(set(starts)) == len(starts) / GROUP


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    keys = ["algorithm.filter_groups.enable=true"]
    whole = train(tmp_path / "whole", "num_steps=4", *keys)
    train(tmp_path / "halves", "num_steps=2", *keys)
    halves = train(tmp_path / "halves", "num_steps=4", *keys)
    assert [lasting(metrics) for metrics in halves] == [lasting(metrics) for metrics in whole]
    weights = [(tmp_path / run / "policy" / "model.safetensors").read_bytes() for run in ("whole", "halves")]
    assert weights[0] == weights[1]


def test_a_batch_that_is_collected_ahead_is_full_of_signal_too(tmp_path):
    keys = ["algorithm.filter_groups.enable=true", "num_steps=2", _bound(40), f"output_dir={tmp_path}"]
    assert train_async(rlrun.load_config([*WORLD, *SMALL, *keys])) == ExitStatus.ok
    first, ahead = read_metrics(tmp_path)
    assert (first["policy_age"], ahead["policy_age"]) == (0, 1)
    assert ahead["num_chunk_steps"] == 2 * NUM_ENVS and ahead["num_missing_groups"] == 0 < ahead["num_dropped_groups"]


def test_a_recorded_step_is_replayed_with_all_its_collections(tmp_path, capsys):
    keys = ["algorithm.filter_groups.enable=true"]
    train(tmp_path / "run", "num_steps=1", "record.num_steps=1", *keys)
    again = [*WORLD, *SMALL, *keys, f"replay.path={tmp_path}/run", f"output_dir={tmp_path}/again"]
    assert replay(rlrun.load_config(again), Machines) == ExitStatus.ok
    assert "replay of steps 0 to 0: as recorded" in capsys.readouterr().out


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_without_any_signal_the_update_is_skipped(tmp_path, capsys, kl_coef):
    """All episodes of a start have the same outcome if actions are always the most likely ones."""
    keys = ["algorithm.filter_groups.enable=true", "rollout.temperature=1e-6", f"algorithm.kl_coef={kl_coef}"]
    metrics = train(tmp_path / "run", "num_steps=2", *keys, _bound(2))
    for step in metrics:
        assert step["num_missing_groups"] == step["num_groups"] and step["num_gen_batches"] == 2
        assert step["num_optimizer_steps"] == step["num_chunk_steps"] == 0
        assert all(np.isfinite(number) for number in step.values()), step
    assert [step["policy_version"] for step in metrics] == [1, 2]
    told = " ".join(capsys.readouterr().out.split())
    assert "nothing was learned in this step: in each of 8 groups all episodes had the same episode_return" in told


def _bound(number: int) -> str:
    return f"algorithm.filter_groups.max_num_gen_batches={number}"
