"""A resumed run is the uninterrupted run."""

from __future__ import annotations

import os
import signal

import pytest

from rlrun.observability.metrics import MetricSinks
from rlrun.system.errors import ExitStatus

pytestmark = pytest.mark.learning

TIMES = {
    "collect_s",
    "update_s",
    "sync_s",
    "step_s",
    "evaluate_s",
    "save_s",
    "elapsed_s",
    "env_steps_per_second",
    "time_s",
}


def lasting(metrics: dict) -> dict:
    """What must be equal: everything but clocks."""
    return {
        k: v
        for k, v in metrics.items()
        if k not in TIMES and not k.startswith(("busy_", "memory_")) and "time" not in k
    }


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path, run_training):
    _, whole = run_training(tmp_path / "whole", "num_steps=4", "checkpoint.every_steps=2")
    run_training(tmp_path / "halved", "num_steps=2", "checkpoint.every_steps=2")
    status, halves = run_training(tmp_path / "halved", "num_steps=4", "checkpoint.every_steps=2")
    assert status == ExitStatus.ok
    assert [lasting(m) for m in halves] == [lasting(m) for m in whole]
    weights = [(tmp_path / run / "policy" / "model.safetensors").read_bytes() for run in ("whole", "halved")]
    assert weights[0] == weights[1]
    assert [m["rollout_logprob_gap"] < 1e-5 for m in whole] == [True] * 4


def test_a_signal_saves_and_the_next_start_goes_on(tmp_path, run_training, monkeypatch):
    log = MetricSinks.log

    def log_and_be_preempted(self, step, metrics):
        log(self, step, metrics)
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(MetricSinks, "log", log_and_be_preempted)
    status, metrics = run_training(tmp_path / "run", "num_steps=3", "checkpoint.every_steps=10")
    assert status == ExitStatus.preempted and [m["step"] for m in metrics] == [1]
    monkeypatch.setattr(MetricSinks, "log", log)
    status, metrics = run_training(tmp_path / "run", "num_steps=3", "checkpoint.every_steps=10")
    assert status == ExitStatus.ok and [m["step"] for m in metrics] == [1, 2, 3]
