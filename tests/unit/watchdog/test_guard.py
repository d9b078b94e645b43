"""The guard reports a driver that holds the GIL, is stopped, or whose main thread hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.watchdog import guard, node_state
from rlrun.watchdog.guard import DriverMonitor
from rlrun.watchdog.stacks import Stack

DRIVER = """
import ctypes, os, signal, subprocess, sys, time
from pathlib import Path
from rlrun.data.checkpoint_folder import COMPLETE, folder_of_step
from rlrun.system.telemetry import Telemetry, mark_alive
from rlrun.system.local_files import LockedFolder
from rlrun.watchdog.guard import Guard
from rlrun.watchdog.supervised import RAY_FOLDER_PREFIX

def hold_the_lock():
    ctypes.PyDLL(None).sleep(600)

def hang():
    time.sleep(600)

def wait_long(seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        mark_alive()
        time.sleep(0.5)

def with_ray():
    folder = LockedFolder(sys.argv[1], RAY_FOLDER_PREFIX)
    with (folder.inner / "agent.log").open("w") as log:
        agent = subprocess.Popen(["sleep", "600"], stdout=log, stderr=log, start_new_session=True)
    print(agent.pid, flush=True)
    hang()

def segfault():
    time.sleep(1)  # so that the guard has seen it alive
    os.kill(os.getpid(), signal.SIGSEGV)

def wait_on():
    wait_long(600)

run_dir, kind = Path(sys.argv[1]), sys.argv[2]
(run_dir / "logs").mkdir()
driver = Telemetry("driver/0")
checkpoint = folder_of_step(run_dir / "checkpoints", 4)
checkpoint.mkdir(parents=True)
(checkpoint / COMPLETE).touch()
guard = Guard(run_dir, 6.0, lambda: 6.0, lambda: "save", "python -m rlrun.train resume=x", str(run_dir))
with driver.span("collect"):
    print("ready", flush=True)
    globals()[kind]()
guard.close()
"""


@pytest.fixture
def driver(tmp_path):
    """Start a driver that calls the named function, and return its process."""
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


def alarm_of(process: subprocess.Popen) -> str:
    """Return the lines of one alarm."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "evidence" in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def children(task: Path) -> list[str]:
    """Return the child pids of a thread; none for a thread that has just ended."""
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def guard_of(process: subprocess.Popen) -> str:
    """Return the pid of a driver's guard, once it runs its own program: between fork and exec it has no name."""
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
        pytest.param("hang", "driver-asleep", "its main thread is blocked", marks=pytest.mark.long),
    ],
)
def test_a_driver_that_hangs(driver, tmp_path, kind, row, says):
    process = driver(kind)
    text = alarm_of(process)
    assert says in text and f"(pid {process.pid})" in text and f"in {kind} " in text
    assert f"docs/troubleshooting.md#{row}" in text
    (archive,) = (tmp_path / "alarms").iterdir()
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        stacks = next(name for name in names if name.endswith("stacks.txt"))
        assert kind in packed.extractfile(stacks).read().decode()
    assert says in (tmp_path / "logs" / "driver-0.log").read_text()


def test_a_stopped_driver_is_reported_and_its_recovery_too(driver):
    process = driver("wait_on")
    os.kill(process.pid, signal.SIGSTOP)
    text = alarm_of(process)
    assert "is stopped (state T)" in text and "kill -CONT" in text
    os.kill(process.pid, signal.SIGCONT)
    assert any("driver/0 moves again after" in line for line in process.stderr)


def test_a_waiting_driver_causes_no_alarm_and_the_guard_ends_with_it(driver, tmp_path):
    process = driver("wait_long")
    child = guard_of(process)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "alarm" not in said and not (tmp_path / "alarms").exists()
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize(
    ("code", "how"),
    [(None, "killed by SIGKILL"), pytest.param("segfault", "killed by SIGSEGV", marks=pytest.mark.long)],
)
def test_the_guard_says_how_a_driver_ended_and_how_to_resume_and_ends_what_it_left(driver, tmp_path, code, how):
    process = driver("with_ray" if code is None else code)
    child = guard_of(process)
    if code is None:
        agent = int(process.stdout.readline())
        process.kill()
    told = process.stderr.read()  # until nothing of it is left
    assert f"driver/0@{socket.gethostname()} (pid {process.pid}) ended without closing the run: {how}" in told
    assert "to resume (from step_00000004): python -m rlrun.train resume=x" in told
    if code is None:
        assert f"ended 1 processes of its Ray, and removed {tmp_path}/rlrun-ray-" in told
        assert not list(tmp_path.glob("rlrun-ray-*")) and node_state.state(agent) in ("gone", "Z")
    end = time.monotonic() + 20
    while node_state.state(int(child)) not in ("gone", "Z"):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert how in (tmp_path / "logs" / "driver-0.log").read_text()


def test_a_killed_guard_is_restarted_and_the_new_one_works(driver):
    process = driver("wait_on")
    child = guard_of(process)
    os.kill(int(child), signal.SIGKILL)
    assert "ended (killed by SIGKILL); started again" in process.stderr.readline()
    assert guard_of(process) != child
    os.kill(process.pid, signal.SIGSTOP)
    assert "is stopped (state T)" in alarm_of(process)
    os.kill(process.pid, signal.SIGCONT)


class Disk:
    """A disk that responds until `waited_s` is set."""

    waited_s = 0.0

    def check(self):
        return self.waited_s


@pytest.fixture
def monitor(monkeypatch, tmp_path):
    """A monitor of this process with a clock, a load and a disk of its own; `monitor.said` are its first lines."""
    now, load = [0.0], [0.0]
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: now[0], strftime=time.strftime))
    monkeypatch.setattr("os.getloadavg", lambda: (load[0] * os.cpu_count(), 0.0, 0.0))
    monkeypatch.setattr(guard, "queue_seconds", lambda pids, with_children: {})  # this process may wait for a core
    monkeypatch.setattr(guard, "dump_worker", lambda pid, log: Stack((), False, ""))
    monkeypatch.setattr(DriverMonitor, "_keep_evidence", lambda self, sentence, kind: None)
    said, disk = [], Disk()
    monitor = DriverMonitor(tmp_path, os.getpid(), 20.0, lambda lines: said.append(lines[0]), disk)
    monitor.said, monitor.now, monitor.load, monitor.disk = said, now, load, disk
    return monitor


def after(monitor, seconds, blocked_s=None, limit_s=45.0):
    """Check once a second; the driver sends heartbeats if `blocked_s` is given. Returns the reports."""
    said = len(monitor.said)
    for second in range(seconds):
        monitor.now[0] += 1.0
        if blocked_s is not None:
            monitor.receive({"blocked_s": blocked_s + second, "limit_s": limit_s, "phase": "callback a:Upload.on_step"})
        monitor.check()
    return monitor.said[said:]


@pytest.mark.parametrize(("load", "limit_s"), [(0.0, 20), (1.9, 20), (3.0, 30), (17.0, 170), (50.0, 500)])
def test_a_driver_without_heartbeats_is_reported_later_on_a_loaded_machine(monitor, load, limit_s):
    monitor.load[0] = load
    assert after(monitor, limit_s // 2) == []
    (warning,) = after(monitor, limit_s // 2)
    assert "has not answered for" in warning and f"alarm {limit_s} s" in warning
    (alarm,) = after(monitor, 30)
    assert f"does not answer and has not moved for {limit_s + 1} s" in alarm


def test_a_blocked_main_thread_is_reported_within_a_minute_at_any_load(monitor):
    monitor.load[0] = 500.0
    assert after(monitor, 23, blocked_s=0.0) == []
    (warning,) = after(monitor, 20, blocked_s=23.0)
    assert "its main thread has been blocked for 23 s in callback a:Upload.on_step; alarm 45 s" in warning
    (alarm,) = after(monitor, 10, blocked_s=43.0)
    assert "answers, but its main thread is blocked and has not moved for 46 s" in alarm
    assert after(monitor, 1, blocked_s=0.0) == ["driver/0 moves again after 53 s"]


def test_a_disk_that_hangs_is_reported_once_and_its_recovery_too(monitor):
    assert after(monitor, 5, blocked_s=0.0) == []
    monitor.disk.waited_s = 11.0
    (alarm,) = after(monitor, 3, blocked_s=0.0)
    assert alarm == f"alarm: the disk of {monitor._run_dir} does not answer: a small file has waited 11 s for it"
    monitor.disk.waited_s = 61.0
    assert after(monitor, 3, blocked_s=0.0) == []
    (alarm,) = after(monitor, 1, blocked_s=50.0)
    assert f"has not moved for 50 s; the disk of {monitor._run_dir} does not answer" in alarm
    monitor.disk.waited_s = 0.0
    assert after(monitor, 1, blocked_s=0.0)[0] == f"the disk of {monitor._run_dir} answers again, after 61 s"


def test_a_busy_machine_gives_its_disk_more_time(monitor):
    monitor.load[0] = 2000.0
    monitor.disk.waited_s = 1.5 * guard.DISK_TIMEOUT_S
    assert after(monitor, 3, blocked_s=0.0) == []


def test_a_limit_that_grows_is_no_recovery(monitor):
    after(monitor, 1, blocked_s=0.0)
    (alarm,) = after(monitor, 1, blocked_s=21.0, limit_s=20.0)
    assert "alarm" in alarm
    assert (
        after(monitor, 10, blocked_s=22.0, limit_s=40.0) == [] and after(monitor, 5, blocked_s=32.0, limit_s=20.0) == []
    )
    assert after(monitor, 1, blocked_s=0.0) == ["driver/0 moves again after 37 s"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_alarm_begins_on_a_line_of_its_own(tmp_path, monkeypatch, is_terminal) -> None:
    written: list[str] = []
    stream = SimpleNamespace(isatty=lambda: is_terminal, write=written.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stderr", stream)
    guard.print_report(tmp_path, ["alarm"]).join()
    assert "".join(written) == ("\r\x1b[K" if is_terminal else "") + "rlrun: alarm\n"
