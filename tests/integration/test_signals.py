"""Signals to the processes of a run: Ctrl-C as a terminal sends it, a scheduler's, and one that kills the driver.

Ctrl-C once saves, twice ends now; before there is anything to save, once is enough. Nothing is left running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from rlrun.data import checkpoint_folder
from rlrun.system.errors import ExitStatus
from rlrun.training.stop_signal import StopSignal

pytestmark = pytest.mark.integration

MARK = "RLRUN_TEST_RUN"
DEADLINE_S = 120
ANY_POLICY = "policy.kind=cnn"  # needs no demonstrations


class Run:
    """A training run in a process group of its own, which would go on for hours."""

    def __init__(self, folder: Path, *more: str):
        self.folder, self.mark, self.told = folder, uuid.uuid4().hex, ""
        keys = ["run=debug", "num_steps=100000", "checkpoint.every_steps=100000", "evaluation.num_episodes=1"]
        keys += [f"output_dir={folder}/run", f"cache_dir={folder}/cache", "logging.video_episodes=0", *more]
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "rlrun.train", *keys],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: self.mark},
            start_new_session=True,
        )

    def read_until(self, words: str) -> None:
        for line in self.process.stdout:
            self.told += line
            if words in line:
                return
        pytest.fail(f"never said {words!r}:\n{self.told}")

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def signal_all(self, number: signal.Signals) -> None:
        """Signal every process of the run, in whatever session and process group it is."""
        for process in psutil.process_iter():
            if self._is_mine(process):
                process.send_signal(number)

    def end(self) -> int:
        """Exit status; what is still said is kept."""
        self.told += self.process.communicate(timeout=DEADLINE_S)[0]
        return self.process.returncode

    def left(self) -> list[str]:
        """Processes of this run that are still there after a moment."""
        end = time.monotonic() + 10
        while (found := [p for p in psutil.process_iter() if self._is_mine(p)]) and time.monotonic() < end:
            time.sleep(0.2)
        return [str(process) for process in found]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


@pytest.mark.long
def test_a_run_that_still_starts_ends_at_once(tmp_path):
    run = Run(tmp_path)
    run.read_until("watchdog: ")  # the workers are there, and now make demonstrations
    run.process.terminate()
    assert run.end() == ExitStatus.preempted, run.told
    assert "SIGTERM: ended before the first step" in run.told and "Traceback" not in run.told
    assert "policy after imitation" not in run.told
    assert run.left() == []


@pytest.mark.long
def test_a_signal_while_ray_starts_has_the_status_of_a_signal(tmp_path):
    """Ray has handlers of its own then, one of them in C."""
    run = Run(tmp_path, ANY_POLICY)
    run.read_until("run folder: ")
    time.sleep(1.5)
    run.process.terminate()
    assert run.end() == ExitStatus.preempted, run.told
    assert "to resume: " in run.told and "SIGTERM received" not in run.told and "Traceback" not in run.told
    assert run.left() == []


def saved_by_one_signal(folder: Path) -> Path:
    """The checkpoint that Ctrl-C leaves; a next run of the same folder resumes from it."""
    saved = Run(folder, ANY_POLICY)
    saved.read_until("step      1/")
    saved.interrupt()
    assert saved.end() == ExitStatus.preempted, saved.told
    assert "again to end now" in saved.told and "to resume: " in saved.told
    assert "Traceback" not in saved.told
    checkpoint = checkpoint_folder.latest(folder / "run" / "checkpoints")
    assert checkpoint is not None
    assert saved.left() == []
    return checkpoint


def test_one_signal_saves(tmp_path):
    step = saved_by_one_signal(tmp_path).name.rpartition("_")[2]
    assert int(step) >= 1


@pytest.mark.long
def test_one_signal_saves_also_within_an_evaluation_and_two_end_at_once(tmp_path):
    first = saved_by_one_signal(tmp_path)
    evaluating = Run(tmp_path, ANY_POLICY, "evaluation.every_steps=1", "evaluation.num_episodes=100000")
    evaluating.read_until("env steps/s")  # a step is told of before the policy is evaluated
    time.sleep(0.5)
    evaluating.process.terminate()
    assert evaluating.end() == ExitStatus.preempted, evaluating.told
    assert "to resume: " in evaluating.told and "Traceback" not in evaluating.told
    assert "evaluation after" not in evaluating.told
    second = checkpoint_folder.latest(tmp_path / "run" / "checkpoints")
    step = int(second.name.rpartition("_")[2])
    assert step == int(first.name.rpartition("_")[2]) + 1
    assert evaluating.left() == []

    ended = Run(tmp_path, ANY_POLICY, "algorithm.horizon=2000")  # a step takes long
    ended.read_until("resumed")
    ended.read_until(f"evaluation after step {step}: ")  # the one that was cut short
    time.sleep(1)
    ended.interrupt()
    ended.read_until("again to end now")  # two at once are one: Python sees them between two calls of Ray's C code
    ended.interrupt()
    assert ended.end() == ExitStatus.interrupted, ended.told
    assert "Traceback" not in ended.told
    assert ended.left() == []


@pytest.mark.long
def test_a_scheduler_s_signal_to_all_processes_ends_a_run_that_still_starts(tmp_path):
    run = Run(tmp_path)
    run.read_until("watchdog: ")
    run.signal_all(signal.SIGTERM)
    began = time.monotonic()
    assert run.end() == ExitStatus.preempted, run.told
    assert time.monotonic() - began < 50, "seconds, and less than the minute of Ray's own patience on a busy machine"
    assert "SIGTERM: ended before the first step" in run.told and "to resume: " in run.told
    assert "GCS" not in run.told and "Traceback" not in run.told
    assert run.left() == []


@pytest.mark.long
def test_a_scheduler_s_signals_to_all_processes_save_the_run_once_and_ask_for_a_restart(tmp_path):
    """As `timeout` sends the first, and systemd the second, to whatever is in the control group."""
    run = Run(tmp_path, ANY_POLICY, "checkpoint.every_steps=1")
    run.read_until("step      2/")
    run.signal_all(signal.SIGTERM)
    time.sleep(StopSignal.ECHO_S + 0.5)
    run.signal_all(signal.SIGTERM)
    assert run.end() == ExitStatus.preempted, run.told
    assert "to resume: " in run.told and "Traceback" not in run.told and "warning" not in run.told
    assert checkpoint_folder.latest(tmp_path / "run" / "checkpoints") is not None
    assert run.left() == []


def test_a_killed_driver_leaves_a_word_and_nothing_else(tmp_path):
    run = Run(tmp_path, ANY_POLICY, "checkpoint.every_steps=1")
    run.read_until("step      2/")
    run.process.kill()
    began = time.monotonic()
    assert run.end() == -signal.SIGKILL
    assert run.left() == [] and time.monotonic() - began < 30
    assert f"(pid {run.process.pid}) ended without closing the run: killed by SIGKILL" in run.told
    assert "to resume (from step_" in run.told and f"resume={tmp_path}/run" in run.told
    assert "processes of its Ray, and removed " in run.told
