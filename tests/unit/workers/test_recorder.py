"""Recording of an env worker's interaction with the policy, and of what the actor makes of it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from rlrun.config.schema import RunConfig
from rlrun.controller.local_workers import make_worker
from rlrun.data.recording import METRICS, RECORDING_FOLDER, Recording
from rlrun.edges.weights import WeightBucket
from rlrun.system.telemetry import Telemetry
from rlrun.workers import env_worker as module
from rlrun.workers.recorder import Recorder
from tests.unit.data.messages import assert_same
from tests.unit.workers.counting_env import LIMIT, CountingEnv, answer, talk

HORIZON = 8


def configured(folder, **record) -> RunConfig:
    config = RunConfig(output_dir=str(folder))
    config.env.num_envs, config.env.num_workers, config.env.max_control_steps = 4, 1, LIMIT
    config.policy.num_action_chunks, config.algorithm.horizon, config.actor.num_workers = 2, HORIZON, 2
    for key, value in {"num_steps": 2, **record}.items():
        setattr(config.record, key, value)
    return config


def test_a_run_without_record_and_replay_does_not_import_them() -> None:
    modules = "rlrun.train_async, rlrun.training.loop, rlrun.workers.env_worker, rlrun.workers.actor_worker"
    program = f"import sys, {modules}, rlrun.workers.rollout_worker; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "rlrun.workers.actor_worker" in imported.split()
    features = {f"rlrun.{name}" for name in ("workers.recorder", "workers.recorded_actor")}
    assert not (features | {"rlrun.training.replay"}) & set(imported.split())


@pytest.fixture
def worker_of(monkeypatch):
    def make(config, length_of=lambda seed: 5):
        monkeypatch.setattr(module, "make_env", lambda _, n, *rest: CountingEnv(n, length_of))
        worker = make_worker("env", 0, config, {})
        worker.load()
        return worker

    return make


def test_a_recorded_interaction_is_the_same(tmp_path, worker_of):
    plain = talk(worker_of(configured(tmp_path / "plain", num_steps=0)).collect(0))
    taped = talk(worker_of(configured(tmp_path / "taped")).collect(0))
    for was, now in zip(plain[1:], taped[1:], strict=True):
        assert_same(now, was)
    assert not (tmp_path / "plain").exists()
    held = Recording(tmp_path / "taped" / RECORDING_FOLDER)
    assert held.steps() == [0]
    counts = {edge: len(held.messages(0, "env/0", edge)) for edge in ("observation", "actions", "trajectory")}
    assert counts == {"observation": HORIZON + 1, "actions": HORIZON + 1, "trajectory": 2}


def test_steps_and_edges_are_chosen(tmp_path, worker_of):
    worker = worker_of(configured(tmp_path, first_step=1, num_steps=1, edges=["actions"]))
    for step in range(3):
        talk(worker.collect(step))
    held = Recording(tmp_path / RECORDING_FOLDER)
    assert held.steps() == [1] and held.messages(1, "env/0", "observation") == []
    assert len(held.messages(1, "env/0", "actions")) == HORIZON + 1


def test_an_interaction_that_breaks_off_leaves_what_it_heard(tmp_path, worker_of):
    interaction = worker_of(configured(tmp_path)).collect(0)
    observation = next(interaction)
    for _ in range(3):
        observation = interaction.send(answer(observation))
    interaction.close()
    held = Recording(tmp_path / RECORDING_FOLDER)
    counts = {edge: len(held.messages(0, "env/0", edge)) for edge in ("observation", "actions", "trajectory")}
    assert counts == {"observation": 4, "actions": 3, "trajectory": 0}


def test_what_broke_the_simulator_is_recorded_before_it_is_carried_out(tmp_path, worker_of):
    worker = worker_of(configured(tmp_path))

    def break_(actions, active=None):
        raise KeyboardInterrupt

    worker.env.step_chunk = break_
    interaction = worker.collect(0)
    with pytest.raises(KeyboardInterrupt):
        interaction.send(answer(next(interaction)))
    assert len(Recording(tmp_path / RECORDING_FOLDER).messages(0, "env/0", "actions")) == 1


def test_the_share_bounds_the_recording_by_whole_steps(tmp_path, worker_of):
    one = configured(tmp_path / "one")
    talk(worker_of(one).collect(0))
    size = sum(path.stat().st_size for path in (tmp_path / "one").rglob("*") if path.is_file())
    worker = worker_of(configured(tmp_path / "two", num_steps=9, max_bytes=2 * int(2.5 * size)))  # two have a share
    for step in range(9):
        talk(worker.collect(step))
    held = Recording(tmp_path / "two" / RECORDING_FOLDER)
    steps = [step for step in held.steps() if held.messages(step, "env/0", "trajectory")]
    assert 2 <= len(steps) < 9 and steps == list(range(len(steps)))
    assert sum(path.stat().st_size for path in (tmp_path / "two").rglob("*") if path.is_file()) <= 2.5 * size
    assert worker.telemetry.status().counters["recorded_bytes"] > 0


def test_a_disk_that_is_full_ends_the_recording_and_not_the_run(tmp_path, worker_of, caplog):
    (tmp_path / RECORDING_FOLDER).write_text("not a folder")
    _, *shards = talk(worker_of(configured(tmp_path)).collect(0))
    assert len(shards) == 2
    assert "recording ends before step 0" in caplog.text


def test_an_update_is_recorded_a_bucket_at_a_time_and_its_metrics_last(tmp_path):
    recorder = Recorder(configured(tmp_path), Telemetry("actor/0"))
    held = Recording(tmp_path / RECORDING_FOLDER)
    metrics = held.worker_folder(0, "actor/0") / METRICS
    seen = []

    def buckets():
        for index in range(3):
            seen.append((len(held.messages(0, "actor/0", "weights")), metrics.exists()))
            yield WeightBucket(1, index, 3, (), np.full(8, index, np.uint8))

    recorder.update(0, {"loss": 1.5}, buckets())
    assert seen == [(0, False), (1, False), (2, False)]
    assert len(held.messages(0, "actor/0", "weights")) == 3 and json.loads(metrics.read_text()) == {"loss": 1.5}
