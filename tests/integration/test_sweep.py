"""A sweep of two by two runs and its report; a run that fails; a signal; a SLURM array."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.observability.records import read_evaluations
from rlrun.observability.run_files import REPORT
from rlrun.system.errors import ExitStatus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
TINY = [
    *("run=cartpole", "cluster.kind=local", "logging.tensorboard=false", "evaluation.num_episodes=2", "num_steps=1"),
    *("algorithm.horizon=16", "algorithm.global_batch_size=128", "actor.micro_batch_size=64"),
    *("env.max_control_steps=20", "logging.video_episodes=0"),
]


def sweep(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "rlrun.train", "-m", *TINY, f"output_dir={folder}", *arguments]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("rates", [["3e-3"], pytest.param(["1e-3", "3e-3"], marks=pytest.mark.long)])
def test_runs_and_their_report(tmp_path: Path, rates: list[str]) -> None:
    """Of two seeds; `make long` has two learning rates by two seeds."""
    folder = tmp_path / "sweep"
    running = sweep(folder, f"actor.lr={','.join(rates)}", "seed=0,1")
    told, _ = running.communicate(timeout=1200)
    assert running.returncode == 0, told
    labels = [f"lr={lr},seed={seed}" if len(rates) > 1 else f"seed={seed}" for lr in rates for seed in (0, 1)]
    assert told.count(": done, success") == len(labels) and told.rstrip().endswith(str(folder / REPORT))
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == labels
    assert all(len(read_evaluations(folder / label)) == 2 for label in labels)
    page = (folder / REPORT).read_text()
    assert f"{len(labels)} runs compared" in page
    assert [f"actor.lr {float(lr)}" in page for lr in rates] == [len(rates) > 1] * len(rates)  # what differs is named
    assert page.count("of 1</td>") == len(labels) and f'href="{labels[-1]}/report.html"' in page
    program = [sys.executable, "-m", "rlrun.report", *(folder / label for label in labels), "--output"]
    done = subprocess.run([*program, tmp_path / "a.html"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(tmp_path / "a.html")
    assert f"{len(labels)} runs compared" in (tmp_path / "a.html").read_text()


@pytest.mark.long
def test_a_run_that_fails_does_not_end_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "num_envs=4").write_text("in the way of a folder")
    running = sweep(tmp_path, "env.num_envs=4,8", "algorithm.global_batch_size=64")
    told, _ = running.communicate(timeout=1200)
    assert running.returncode not in (0, 1), told
    assert re.search(r"run 1 of 2: .*: ended with status \d+", told) and re.search(r"run 2 of 2: .*: done", told), told


@pytest.mark.long
def test_a_signal_ends_the_sweep(tmp_path: Path) -> None:
    running = sweep(tmp_path, "seed=0,1", "num_steps=100000")
    end = time.monotonic() + 300
    metrics = tmp_path / "seed=0" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and running.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    told, _ = running.communicate(timeout=600)
    assert running.returncode == ExitStatus.preempted, told
    assert "SIGINT: the sweep ends" in told and not (tmp_path / "seed=1").exists()


SBATCH = """#!/bin/sh
echo "$@" > "$(dirname "$0")/asked"
"""


def test_an_array_has_a_task_for_each_run(tmp_path: Path) -> None:
    """Submitted by a stand-in for sbatch; each task's file has the arguments that its run takes."""
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    folder = tmp_path / "a sweep"
    command = [
        sys.executable,
        "-m",
        "rlrun.train",
        "-m",
        *TINY,
        f"output_dir={folder}",
        "seed=0,1,2",
        "--sbatch",
        "x.sh",
    ]
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(command, check=True, env=os.environ | path, cwd=ROOT, timeout=300, capture_output=True)
    assert (tmp_path / "asked").read_text().split(" ", 2) == ["--array=0-2", "x.sh", f"{folder}/tasks\n"]
    run_dir, *arguments = (folder / "tasks" / "2.txt").read_text().splitlines()
    assert run_dir == str(folder / "seed=2")
    program = [sys.executable, "-m", "rlrun.train", *arguments, "--cfg", "job"]
    checked = subprocess.run(program, check=True, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert "seed: 2\n" in checked.stdout and "name: cartpole_seed=2\n" in checked.stdout


def test_without_slurm_an_array_is_refused(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "rlrun.train",
        "-m",
        *TINY,
        f"output_dir={tmp_path}",
        "seed=0,1",
        "--sbatch",
        "x.sh",
    ]
    environment = os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run(command, check=False, env=environment, cwd=ROOT, timeout=300, capture_output=True, text=True)
    assert done.returncode == ExitStatus.placement and "SLURM does not take" in done.stderr
