"""A driver that holds Python's lock, is stopped, or whose main thread is stuck, is told by its guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

DRIVER = """
import ctypes, sys, time
from pathlib import Path
from rlrun.observability.telemetry import Telemetry, sign_of_life
from rlrun.watchdog.guard import Guard

def hold_the_lock():
    ctypes.PyDLL(None).sleep(600)

def hang():
    time.sleep(600)

def wait_long(seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sign_of_life()
        time.sleep(0.5)

def wait_on():
    wait_long(600)

run_dir, kind = Path(sys.argv[1]), sys.argv[2]
(run_dir / "logs").mkdir()
driver = Telemetry("driver/0")
guard = Guard(run_dir, 6.0, lambda: 6.0)
with driver.span("collect"):
    print("ready", flush=True)
    globals()[kind]()
guard.close()
"""


@pytest.fixture
def driver(tmp_path):
    """Call with what the driver does; its process."""
    started = []

    def start(kind: str) -> subprocess.Popen:
        command = [sys.executable, "-c", DRIVER, str(tmp_path), kind]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=10)


def told(process: subprocess.Popen) -> str:
    """The lines of one alarm."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "evidence" in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def guard_of(process: subprocess.Popen) -> str:
    """The process id of a driver's guard, once it runs its own program: between fork and exec it has no name."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if "rlrun.watchdog.guard" in Path(f"/proc/{child}/cmdline").read_text():
                return child
        time.sleep(0.05)
    raise AssertionError("the driver has no guard")


@pytest.mark.parametrize(
    ("kind", "row", "says"),
    [
        ("hold_the_lock", "gil-held", "holds Python's lock in C code"),
        ("hang", "driver-asleep", "its main thread stands still"),
    ],
)
def test_a_driver_that_stands_still(driver, tmp_path, kind, row, says):
    process = driver(kind)
    text = told(process)
    assert says in text and f"(pid {process.pid})" in text and f"in {kind} " in text
    assert f"docs/troubleshooting.md#{row}" in text
    (archive,) = (tmp_path / "alarms").iterdir()
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        stacks = next(name for name in names if name.endswith("stacks.txt"))
        assert kind in packed.extractfile(stacks).read().decode()
    assert says in (tmp_path / "logs" / "driver-0.log").read_text()


def test_a_stopped_driver_and_that_it_goes_on(driver):
    process = driver("wait_on")
    os.kill(process.pid, signal.SIGSTOP)
    text = told(process)
    assert "is stopped (state T)" in text and "kill -CONT" in text
    os.kill(process.pid, signal.SIGCONT)
    assert any("driver/0 moves again after" in line for line in process.stderr)


def test_a_driver_that_waits_is_no_alarm_and_the_guard_ends_with_it(driver, tmp_path):
    process = driver("wait_long")
    child = guard_of(process)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "alarm" not in said and not (tmp_path / "alarms").exists()
    assert not Path(f"/proc/{child}").exists()


def test_the_guard_does_not_outlive_a_killed_driver(driver):
    process = driver("hang")
    child = guard_of(process)
    process.kill()
    end = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.1)
