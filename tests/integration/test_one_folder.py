"""Two real runs want one run folder: the second is refused, the first goes on; a dead run's lock is taken over."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlrun.config.exit_status import ExitStatus

pytestmark = pytest.mark.integration


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """A run in `tmp_path`/run that takes no time to prepare; ended with the test."""
    running = []

    def call(*overrides: str) -> subprocess.Popen:
        words = ["run=cartpole", "cluster.kind=local", "logging.tensorboard=false", "evaluation.num_episodes=2"]
        command = [sys.executable, "-m", "rlrun.train", *words, f"output_dir={tmp_path}/run", *overrides]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        running.append(process)
        return process

    yield call
    for process in running:
        process.kill()
        process.communicate()


def until(is_so: Callable[[], bool], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def steps(folder: Path) -> list[int]:
    file = folder / "metrics.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.exists() else []


def test_the_second_run_in_a_folder_is_refused_and_the_first_goes_on(start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = start("num_steps=100000")
    until(lambda: len(steps(folder)) >= 1, first)
    written = (folder / "config.yaml").read_text()
    output, _ = (second := start("num_steps=3")).communicate(timeout=60)
    assert second.returncode == ExitStatus.bad_config, output
    assert "Another run writes to this run folder." in output and "Traceback" not in output
    assert f"process {first.pid} on " in output and f"kill {first.pid}" in output and "output_dir" in output
    assert (folder / "config.yaml").read_text() == written, "the second one wrote before it asked"
    told = len(steps(folder))
    until(lambda: len(steps(folder)) > told, first)
    found = steps(folder)
    assert found == list(range(1, len(found) + 1))
    first.kill()
    first.communicate()
    third = start("num_steps=100000")
    for line in third.stdout:
        if "took over" in line:
            break
    else:
        pytest.fail("the third run does not say that it took the folder over")
    assert f"process {first.pid} on " in line
