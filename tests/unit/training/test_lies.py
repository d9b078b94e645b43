"""Whole runs in one process, in which a worker sends what cannot be right: once, or again and again."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rlrun
from rlrun.actor import updates
from rlrun.actor.optimizer import ShardAdamW
from rlrun.controller import weight_update
from rlrun.edges.trajectories import TrajectoryBuilder
from rlrun.observability.run_files import ALARMS, LOSSES, NOTES, read_metrics
from rlrun.rollout.backend import ForwardBatch
from rlrun.rollout.hf import HFBackend
from rlrun.system.errors import ExitStatus, RunError
from rlrun.workers import env_worker
from rlrun.workers.actor_worker import ActorWorker

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


SHARDS = {
    "rewards that are NaN": lambda part: {"rewards": part.rewards * np.nan},
    "a reward of 1e.30": lambda part: {"rewards": np.full_like(part.rewards, 1e30)},
    "other frames, tokens": lambda part: {"tokens": np.full_like(part.tokens, 255)},
    "0 chunk steps to learn from": lambda part: {"valid": part.valid & False},
}


@pytest.mark.parametrize("text", SHARDS)
def test_a_trajectory_that_the_env_worker_changed_is_collected_again(monkeypatch, tmp_path, honest, text) -> None:
    def changed(shards: dict) -> dict:
        return {rank: dataclasses.replace(part, **SHARDS[text](part)) for rank, part in shards.items()}

    lying(monkeypatch, TrajectoryBuilder, "shards", changed, begin=1)
    run(tmp_path)
    for found, expected in zip(metrics_of(tmp_path), honest, strict=True):  # one worker may ask alone: another batch
        assert found == pytest.approx(expected, rel=1e-3)
    assert re.search(f"env/1: it sent .*{text}", (tmp_path / LOSSES).read_text())


def test_a_worker_that_sends_such_trajectories_again_ends_the_run(monkeypatch, tmp_path) -> None:
    lying(monkeypatch, TrajectoryBuilder, "shards", spoilt, begin=2, times=float("inf"))
    with pytest.raises(RunError, match="env/0: it sent a trajectory .* so does the process that replaced it") as end:
        run(tmp_path)
    assert end.value.exit_status is ExitStatus.worker_lost


REPORTS = {
    "an episode that cannot be its own": lambda episodes: [dataclasses.replace(one, env=9) for one in episodes],
    "an episode twice": lambda episodes: [*episodes, *episodes],
    "episodes of other seeds than its own": lambda episodes: [dataclasses.replace(one, seed=5) for one in episodes],
    "a return of 1e.30": lambda episodes: [dataclasses.replace(one, episode_return=1e30) for one in episodes],
}


@pytest.mark.parametrize("text", REPORTS)
def test_episodes_that_cannot_have_happened_are_collected_again(monkeypatch, tmp_path, honest, text) -> None:
    def lie(collected):
        return dataclasses.replace(collected, episodes=REPORTS[text](collected.episodes))

    numbers = iter(range(10**9))
    original = env_worker.Collected
    monkeypatch.setattr(
        env_worker, "Collected", lambda **fields: lie(original(**fields)) if next(numbers) == 2 else original(**fields)
    )
    run(tmp_path)
    for found, expected in zip(metrics_of(tmp_path), honest, strict=True):  # one worker asks alone: another batch
        assert found == pytest.approx(expected, rel=1e-3)
    assert re.search(f"it reported {text}", (tmp_path / LOSSES).read_text())


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
    original = weight_update.WeightUpdate.__init__
    monkeypatch.setattr(
        weight_update.WeightUpdate, "__init__", lambda self, *given: original(self, *given[:-1], notes.append)
    )
    lying(monkeypatch, ActorWorker, "pack", flipped, begin=1)
    run(tmp_path)
    assert metrics_of(tmp_path) == honest
    assert len(notes) == 1 and "arrived with other bytes than were sent, at rollout/0; they are sent again" in notes[0]


def notes_of(folder: Path) -> str:
    run(folder, "algorithm.horizon=64", "algorithm.global_batch_size=128", "actor.micro_batch_size=128")
    return (folder / NOTES).read_text() if (folder / NOTES).exists() else ""


def test_an_honest_run_is_not_warned(tmp_path) -> None:
    assert notes_of(tmp_path) == ""


def test_a_sampler_with_one_key_for_all_rows(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(ForwardBatch, "keys", property(lambda batch: np.full(len(batch.acting), 7, np.uint64)))
    assert "rollout/0 does not draw actions as its policy says" in notes_of(tmp_path)


def test_an_optimizer_that_does_not_step(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(ShardAdamW, "step", lambda self, closure=None: None)
    assert "optimizer steps changed no weight" in notes_of(tmp_path)


def test_an_actor_rank_that_loses_rows(monkeypatch, tmp_path) -> None:
    original = updates.learning_batch

    def fewer(*given):
        batch = original(*given)
        batch.row_mask[::10] = False
        return batch

    monkeypatch.setattr(updates, "learning_batch", fewer)
    assert "an actor rank loses rows" in notes_of(tmp_path)
