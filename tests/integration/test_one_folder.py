"""Two real runs want one run folder: the second is refused, the first goes on; a dead run's lock is taken over."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlrun.observability.run_files import METRICS, read_json_lines
from rlrun.system.errors import ExitStatus

pytestmark = pytest.mark.integration


class Run:
    """A training run in `folder`/run whose preparation takes seconds; all of it is one process."""

    def __init__(self, folder: Path, number: int, *overrides: str):
        words = ["run=cartpole", "cluster.kind=local", "logging.tensorboard=false", "evaluation.num_episodes=2"]
        command = [sys.executable, "-u", "-m", "rlrun.train", *words, f"output_dir={folder}/run", *overrides]
        self.log = folder / f"console_{number}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def until(self, is_so: Callable[[str], bool]) -> None:
        """Wait for something, while the run goes on. is_so: asked with what its console says so far."""
        deadline = time.monotonic() + 120
        while not is_so(self.log.read_text()):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Call with overrides; ended with the test."""
    runs: list[Run] = []

    def call(*overrides: str) -> Run:
        runs.append(Run(tmp_path, len(runs), *overrides))
        return runs[-1]

    yield call
    for run in runs:
        run.end()


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_json_lines(folder / METRICS)]


@pytest.mark.long
def test_the_second_run_in_a_folder_is_refused_and_the_first_goes_on(start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = start("num_steps=100000")
    first.until(lambda _: len(steps(folder)) >= 1)
    written = (folder / "config.yaml").read_text()
    second = start("num_steps=3")
    assert second.process.wait(timeout=60) == ExitStatus.bad_config
    told = second.log.read_text()
    assert "Another run writes to this run folder." in told and "output_dir" in told and "Traceback" not in told
    assert f"process {first.process.pid} on " in told and f"kill {first.process.pid}" in told
    assert (folder / "config.yaml").read_text() == written, "the second one wrote before it asked"
    num_steps = len(steps(folder))
    first.until(lambda _: len(steps(folder)) > num_steps)
    found = steps(folder)
    assert found == list(range(1, len(found) + 1))
    first.end()
    third = start("num_steps=100000")
    third.until(lambda console: "took over" in console)
    assert f"process {first.process.pid} on " in third.log.read_text()
