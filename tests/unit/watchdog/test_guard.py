"""A driver that holds Python's lock, is stopped, or whose main thread is stuck, is told by its guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.watchdog import guard as guard_module
from rlrun.watchdog.guard import Watch
from rlrun.watchdog.stacks import Stack

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


def children(task: Path) -> list[str]:
    """Of a thread; one that has just ended has none."""
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def guard_of(process: subprocess.Popen) -> str:
    """The process id of a driver's guard, once it runs its own program: between fork and exec it has no name."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for child in [c for task in Path(f"/proc/{process.pid}/task").iterdir() for c in children(task)]:
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


def test_a_killed_guard_is_replaced_and_the_next_one_watches(driver):
    process = driver("wait_on")
    child = guard_of(process)
    os.kill(int(child), signal.SIGKILL)
    assert "ended (killed by SIGKILL); started again" in process.stderr.readline()
    assert guard_of(process) != child
    os.kill(process.pid, signal.SIGSTOP)
    assert "is stopped (state T)" in told(process)
    os.kill(process.pid, signal.SIGCONT)


class Disk:
    """Answers, until `waited_s` is set."""

    waited_s = 0.0

    def look(self):
        return self.waited_s


@pytest.fixture
def watch(monkeypatch, tmp_path):
    """A guard of this process with a clock, a load and a disk of its own; `watch.said` is what people were told."""
    now, load = [0.0], [0.0]
    monkeypatch.setattr(guard_module, "time", SimpleNamespace(monotonic=lambda: now[0], strftime=time.strftime))
    monkeypatch.setattr("os.getloadavg", lambda: (load[0] * os.cpu_count(), 0.0, 0.0))
    monkeypatch.setattr(guard_module, "dump_worker", lambda pid, log: Stack((), False, ""))
    monkeypatch.setattr(Watch, "_keep_evidence", lambda self, sentence, kind: None)
    said, disk = [], Disk()
    watch = Watch(tmp_path, os.getpid(), 20.0, lambda lines: said.append(lines[0]), disk)
    watch.said, watch.now, watch.load, watch.disk = said, now, load, disk
    return watch


def after(watch, seconds, still_s=None, limit_s=45.0):
    """Look once a second; the driver beats where `still_s` is given. Returns what is said."""
    said = len(watch.said)
    for second in range(seconds):
        watch.now[0] += 1.0
        if still_s is not None:
            watch.hear({"still_s": still_s + second, "limit_s": limit_s})
        watch.look()
    return watch.said[said:]


@pytest.mark.parametrize(("load", "limit_s"), [(0.0, 20), (1.9, 20), (3.0, 30), (17.0, 40), (500.0, 40)])
def test_a_driver_that_does_not_beat_is_told_within_a_minute_at_any_load(watch, load, limit_s):
    watch.load[0] = load
    assert after(watch, limit_s // 2) == []
    (forewarning,) = after(watch, limit_s // 2)
    assert "has not answered for" in forewarning and f"alarm {limit_s} s" in forewarning
    (alarm,) = after(watch, 30)
    assert f"does not answer and has not moved for {limit_s + 1} s" in alarm


def test_a_main_thread_that_sleeps_is_told_within_a_minute_at_any_load(watch):
    watch.load[0] = 500.0
    assert after(watch, 23, still_s=0.0) == []
    (forewarning,) = after(watch, 20, still_s=23.0)
    assert "its main thread stands still for 23 s; alarm 45 s" in forewarning
    (alarm,) = after(watch, 10, still_s=43.0)
    assert "answers, but its main thread stands still and has not moved for 46 s" in alarm
    assert after(watch, 1, still_s=0.0) == ["driver/0 moves again after 53 s"]


def test_a_disk_that_hangs_is_told_once_and_that_it_answers_again(watch):
    assert after(watch, 5, still_s=0.0) == []
    watch.disk.waited_s = 11.0
    (alarm,) = after(watch, 3, still_s=0.0)
    assert alarm == f"alarm: the disk of {watch._run_dir} does not answer: a small file has waited 11 s for it"
    watch.disk.waited_s = 61.0
    assert after(watch, 3, still_s=0.0) == []
    (alarm,) = after(watch, 1, still_s=50.0)
    assert f"has not moved for 50 s; the disk of {watch._run_dir} does not answer" in alarm
    watch.disk.waited_s = 0.0
    assert after(watch, 1, still_s=0.0)[0] == f"the disk of {watch._run_dir} answers again, after 61 s"


def test_a_limit_that_grows_meanwhile_is_no_movement(watch):
    after(watch, 1, still_s=0.0)
    (alarm,) = after(watch, 1, still_s=21.0, limit_s=20.0)
    assert "alarm" in alarm
    assert after(watch, 10, still_s=22.0, limit_s=40.0) == [] and after(watch, 5, still_s=32.0, limit_s=20.0) == []
    assert after(watch, 1, still_s=0.0) == ["driver/0 moves again after 37 s"]
