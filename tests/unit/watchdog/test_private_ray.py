"""The processes of a private Ray are told from those that only look at it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.system.local_files import LockedFolder
from rlrun.watchdog.supervised import RAY_FOLDER_PREFIX, end_left_over_ray, end_processes

WRITES = "import time; log = open({file!r}, 'w'); print('ready', flush=True); time.sleep(600)"
READS = "import time; log = open({file!r}); print('ready', flush=True); time.sleep(600)"
NAMED = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def folder(tmp_path: Path):
    locked = LockedFolder(str(tmp_path), RAY_FOLDER_PREFIX)
    (locked.inner / "raylet.out").touch()
    yield locked
    locked.close()


@pytest.fixture
def start(folder: LockedFolder):
    """Start a process that runs a program, with more words on its command line. Returns it once it is ready."""
    started = []

    def call(program: str, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-c", program.format(file=str(folder.inner / "raylet.out")), *words]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.communicate()


def test_those_that_write_in_it_or_have_it_as_an_option_are_ended_and_no_others(folder, start):
    writing, option = start(WRITES), start(NAMED, f"--raylet-name={folder.inner}/sockets/raylet")
    reading, naming = start(READS), start(NAMED, "--folder", str(folder.inner))
    neighbour = start(NAMED, f"--temp-dir={folder.path}0/r")
    began = time.monotonic()
    assert end_processes(str(folder.path)) == sorted([writing.pid, option.pid])
    assert time.monotonic() - began < 10
    assert writing.wait(timeout=10) == option.wait(timeout=10) == -9
    assert [process.poll() for process in (reading, naming, neighbour)] == [None] * 3


def test_what_a_dead_process_left_is_ended_and_a_living_one_keeps_its_ray(folder, start, tmp_path):
    crash = (
        "import os, sys; from rlrun.system.local_files import LockedFolder; "
        "print(LockedFolder(sys.argv[1], sys.argv[2]).inner, flush=True); sys.stdin.read(); os._exit(9)"
    )
    command = [sys.executable, "-c", crash, str(tmp_path), RAY_FOLDER_PREFIX]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    inner = driver.stdout.readline().strip()
    worker, own = start(NAMED, f"--temp-dir={inner}/x"), start(WRITES)
    assert end_left_over_ray(driver.pid, str(tmp_path)) == [], "it lives"
    driver.communicate()
    assert end_left_over_ray(driver.pid + 1, str(tmp_path)) == [], "that is another one's"
    assert end_left_over_ray(driver.pid, str(tmp_path)) == [
        f"ended 1 processes of its Ray, and removed {Path(inner).parent}",
    ]
    assert worker.wait(timeout=10) == -9 and not Path(inner).exists()
    assert own.poll() is None and folder.inner.exists()
