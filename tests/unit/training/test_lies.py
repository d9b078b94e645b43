"""Whole runs in one process, in which a worker sends what cannot be right: once, or again and again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rlrun
from rlrun.controller import collection
from rlrun.observability.run_files import ALARMS, LOSSES, read_metrics
from rlrun.rollout.hf import HFBackend
from rlrun.system.errors import ExitStatus, RunError
from rlrun.workers import env_worker
from rlrun.workers.actor_worker import ActorWorker
from rlrun.workers.collector import TrajectoryBuilder

SMALL = [
    *("run=cartpole", "cluster.kind=local", "env.num_envs=2", "env.num_workers=2", "rollout.num_workers=1"),
    *("algorithm.horizon=16", "algorithm.global_batch_size=32", "actor.micro_batch_size=32", "num_steps=2"),
    *("env.max_control_steps=12", "evaluation.num_episodes=2", "logging.tensorboard=false"),
    *("logging.video_episodes=0", "checkpoint.every_steps=100", "algorithm.carry_episodes=false"),
]


def run(folder: Path, *overrides: str) -> ExitStatus:
    return rlrun.run(rlrun.load_config([*SMALL, f"output_dir={folder}", *overrides])).status


def lying(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, lie: Callable, begin: int = 20, times: float = 1
) -> None:
    """Let `lie` change what a method returns, from its call `begin` on, so many times."""
    original, calls = getattr(kind, method), iter(range(10**9))

    def changed(self, *arguments):
        result = original(self, *arguments)
        return lie(result) if begin <= next(calls) < begin + times else result

    monkeypatch.setattr(kind, method, changed)


def metrics_of(folder: Path) -> list[dict]:
    """Return the metrics that decide on what is learned."""
    names = ("policy_loss", "value_loss", "grad_norm", "return_mean", "env_steps")
    return [{name: line[name] for name in names} for line in read_metrics(folder)]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("honest")
    run(folder)
    return metrics_of(folder)


ANSWERS = {
    "NaN": lambda chunks: [dataclasses.replace(c, values=c.values * np.nan) for c in chunks],
    "another question": lambda chunks: [dataclasses.replace(c, actions=c.actions[::-1] + 1) for c in chunks],
    "answers actions of shape": lambda chunks: [dataclasses.replace(c, actions=c.actions[:, :, :0]) for c in chunks],
    "is older than": lambda chunks: [dataclasses.replace(c, policy_version=-3) for c in chunks],
}


@pytest.mark.parametrize("text", ANSWERS)
def test_a_wrong_answer_costs_the_rollout_worker_and_nothing_else(monkeypatch, tmp_path, capsys, honest, text) -> None:
    lying(monkeypatch, HFBackend, "act", ANSWERS[text])
    run(tmp_path)
    assert metrics_of(tmp_path) == honest
    losses = [json.loads(line) for line in (tmp_path / LOSSES).read_text().splitlines()]
    assert [loss["worker"] for loss in losses] == ["rollout/0"] and text in losses[0]["what"]
    assert all(line["num_infra_faults"] == 0 for line in read_metrics(tmp_path))


def test_a_policy_that_answers_nan_again_ends_the_run_with_evidence(monkeypatch, tmp_path) -> None:
    lying(monkeypatch, HFBackend, "act", ANSWERS["NaN"], begin=30, times=float("inf"))
    with pytest.raises(
        RunError, match="the policy of version . answers NaN; so does the process that replaced it"
    ) as end:
        run(tmp_path)
    assert end.value.exit_status is ExitStatus.diverged and end.value.worker == "rollout/0"
    assert len(list((tmp_path / ALARMS).glob("*.tar.gz"))) == 1
    assert "rollout/0" in (tmp_path / LOSSES).read_text()


def test_a_wrong_observation_costs_the_env_worker(monkeypatch, tmp_path, honest) -> None:
    numbers = iter(range(10**9))
    original = env_worker.EnvWorker._collect  # the place where an env worker makes its observations

    def collect(self, *arguments):
        def lie(asked):
            keys = asked.sampling_keys
            return dataclasses.replace(asked, sampling_keys=keys[:0]) if next(numbers) == 8 else asked

        episodes = original(self, *arguments)
        try:
            observation = next(episodes)
            while True:
                observation = episodes.send((yield lie(observation)))
        except StopIteration as finished:
            return finished.value

    monkeypatch.setattr(env_worker.EnvWorker, "_collect", collect)
    run(tmp_path)
    assert metrics_of(tmp_path) == honest
    assert "it sent sampling keys" in (tmp_path / LOSSES).read_text()


def spoilt(shards: dict) -> dict:
    return {rank: dataclasses.replace(part, rewards=part.rewards * np.nan) for rank, part in shards.items()}


def test_a_trajectory_that_nothing_can_be_learned_from_is_collected_again(monkeypatch, tmp_path, honest) -> None:
    lying(monkeypatch, TrajectoryBuilder, "shards", spoilt, begin=1)
    run(tmp_path)
    assert metrics_of(tmp_path) == honest
    assert "env/1: it sent a trajectory with rewards that are NaN" in (tmp_path / LOSSES).read_text()


def test_a_worker_that_sends_such_trajectories_again_ends_the_run(monkeypatch, tmp_path) -> None:
    lying(monkeypatch, TrajectoryBuilder, "shards", spoilt, begin=2, times=float("inf"))
    with pytest.raises(RunError, match="env/0: it sent a trajectory .* so does the process that replaced it") as end:
        run(tmp_path)
    assert end.value.exit_status is ExitStatus.worker_lost


def test_episodes_that_cannot_have_happened_are_collected_again(monkeypatch, tmp_path, honest) -> None:
    def lie(collected):
        episodes = [dataclasses.replace(one, env=9) for one in collected.episodes]
        return dataclasses.replace(collected, episodes=episodes)

    numbers = iter(range(10**9))
    original = env_worker.Collected
    monkeypatch.setattr(
        env_worker, "Collected", lambda **fields: lie(original(**fields)) if next(numbers) == 2 else original(**fields)
    )
    run(tmp_path)
    for found, expected in zip(metrics_of(tmp_path), honest, strict=True):  # one worker asks alone: another batch
        assert found == pytest.approx(expected, rel=1e-3)
    assert "it reported an episode that cannot be its own" in (tmp_path / LOSSES).read_text()


def test_a_version_that_was_acknowledged_and_not_applied(monkeypatch, tmp_path, honest) -> None:
    original, versions = HFBackend.apply, []

    def apply(self, bucket):
        if bucket.policy_version == 1 and not versions:
            versions.append(self.policy_version)
            self.policy_version = bucket.policy_version
        else:
            original(self, bucket)

    monkeypatch.setattr(HFBackend, "apply", apply)
    run(tmp_path)
    assert versions == [0] and metrics_of(tmp_path) == honest
    assert "rollout/0: it acts as policy version 1, but with other weights" in (tmp_path / LOSSES).read_text()


def test_a_flipped_bit_in_a_weight_bucket_is_sent_again(monkeypatch, tmp_path, honest) -> None:
    def flipped(bucket):
        payload = bucket.payload.copy()
        payload[7] ^= 64
        return dataclasses.replace(bucket, payload=payload)

    notes: list[str] = []
    original = collection.WeightUpdate.__init__
    monkeypatch.setattr(
        collection.WeightUpdate, "__init__", lambda self, *given: original(self, *given[:-1], notes.append)
    )
    lying(monkeypatch, ActorWorker, "pack", flipped, begin=1)
    run(tmp_path)
    assert metrics_of(tmp_path) == honest
    assert len(notes) == 1 and "arrived with other bytes than were sent, at rollout/0; they are sent again" in notes[0]
