"""Workers that die in the middle of a run: what was lost is brought again, and nothing else changes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rlrun.config.exit_status import ExitStatus
from rlrun.config.loader import load
from rlrun.observability.run_files import read_json_lines
from rlrun.session import Session
from rlrun.train import Training

pytestmark = pytest.mark.integration

SMALL = ["run=debug", "logging.tensorboard=false", "logging.video_episodes=0", "evaluation.num_episodes=1"]
SHAPE = ["env.num_workers=2", "env.num_envs=4", "actor.num_workers=2", "algorithm.horizon=6"]
PHASES = {"env": "simulate", "rollout": "act", "actor": "update"}


class Killer(threading.Thread):
    """Ends the process of one worker once, while it is in a phase of training step `step`."""

    def __init__(self, session: Session, worker: str, phase: str, step: int):
        super().__init__(daemon=True)
        self.session, self.worker, self.phase, self.step = session, worker, phase, step
        self.has_struck = False

    def run(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and not self.has_struck:
            time.sleep(0.01)
            if (self.session.run_dir / "metrics.jsonl").stat().st_size == 0 and self.step > 0:
                continue
            for status in self.session.team.processes.statuses():
                if status.worker == self.worker and status.phase == self.phase:
                    os.kill(status.pid, signal.SIGKILL)
                    self.has_struck = True


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Call with a name and overrides, and whom to kill; returns (run folder, metrics of every step)."""
    root = tmp_path_factory.mktemp("recovery")

    def call(name: str, *overrides: str, kill: str | None = None, step: int = 0):
        folder = root / name
        config = load([*SMALL, *SHAPE, "num_steps=3", f"output_dir={folder}", f"cache_dir={root}/cache", *overrides])
        with Session(config, is_patient=True) as session:
            training = Training(session)
            if kill is not None:
                killer = Killer(session, kill, PHASES[kill.split("/")[0]], step)
                begin = training.step
                training.step = lambda: (None if killer.is_alive() or killer.has_struck else killer.start(), begin())
            assert training.run() is ExitStatus.ok
            assert kill is None or killer.has_struck
        return folder, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    return call


@pytest.fixture(scope="module")
def undisturbed(run):
    return run("undisturbed")


def losses(folder: Path) -> list[dict]:
    return list(read_json_lines(folder / "losses.jsonl"))


def weights(folder: Path) -> bytes:
    return (folder / "policy" / "model.safetensors").read_bytes()


def test_an_env_worker_dies(run, undisturbed):
    folder, metrics = run("env", kill="env/1")
    assert [line["step"] for line in metrics] == [1, 2, 3]
    (loss,) = losses(folder)
    assert loss["worker"] == "env/1" and loss["num_envs"] == 2
    (disturbed,) = [line for line in metrics if line["num_worker_restarts"]]
    assert disturbed["num_infra_faults"] == 2 and disturbed["step"] == loss["step"]
    for ours, clean in zip(metrics, undisturbed[1], strict=True):  # everything was collected, nothing twice
        assert ours["num_chunk_steps"] == clean["num_chunk_steps"] and ours["num_episodes"] == clean["num_episodes"]


def test_a_rollout_worker_dies(run, undisturbed):
    folder, metrics = run("rollout", "weight_sync.transport=collective", kill="rollout/0")
    assert [line["step"] for line in metrics] == [1, 2, 3] and [loss["worker"] for loss in losses(folder)] == [
        "rollout/0"
    ]
    assert all(line["rollout_logprob_gap"] < 1e-5 for line in metrics)  # it acts with the weights of its step


def test_an_actor_worker_dies(run, undisturbed):
    folder, metrics = run("actor", kill="actor/1", step=1)
    assert [loss["worker"] for loss in losses(folder)] == ["actor/1"]
    assert weights(folder) == weights(undisturbed[0])
