"""How real processes end, as the kernel, its log and faulthandler report it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.status import WorkerStatus
from rlrun.watchdog import supervised
from rlrun.watchdog.supervised import ProcessExits


def status(pid: int, host: str = socket.gethostname()) -> WorkerStatus:
    return WorkerStatus("env/1", host, pid, "simulate", 0.0)


KILL = "os.kill(os.getpid(), signal.{})"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (KILL.format("SIGKILL"), "killed by SIGKILL"),
        (KILL.format("SIGTERM"), "killed by SIGTERM"),
        (KILL.format("SIGSEGV"), "killed by SIGSEGV; its stack is in logs/env-1.log"),
        ("os._exit(0)", "it exited with status 0"),
        ("os._exit(3)", "it exited with status 3"),
    ],
)
def test_a_process_that_its_parent_has_not_reaped(tmp_path: Path, code: str, how: str) -> None:
    exits = ProcessExits(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", f"input(); import os, signal; {code}"], stdin=subprocess.PIPE)
    exits.watch([status(process.pid)])
    process.stdin.write(b"\n")
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert exits.describe("env/1") == how
    process.wait()
    if supervised._reaped_status(exits._pidfds["env/1"][1]) is not None:  # kernels of 6.15 and later
        assert exits.describe("env/1") == how
    exits.close()


def test_an_unknown_end_is_not_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "_EXIT_RECORD_S", 0.05)
    exits = ProcessExits(tmp_path)
    exits.watch([status(os.getpid()), status(1, host="elsewhere")])
    assert exits.describe("env/1") == "" and exits.describe("env/2") == "", "it still runs; it was never watched"


def test_on_another_host_the_log_describes_the_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "env-1.log").write_text("a line\nFatal Python error: Bus error\n\nThread 0x1:\n")
    exits = ProcessExits(tmp_path)
    assert exits.describe("env/1") == "killed by SIGBUS; its stack is in logs/env-1.log"
    os.utime(tmp_path / "logs" / "env-1.log", (0, 0))
    assert exits.describe("env/1") == "", "that was an earlier end"


def test_the_kernels_log_names_a_process_killed_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "Memory cgroup out of memory: Killed process {} (python) total-vm:9kB, anon-rss:1204000kB, file-rss:1kB"
    exits = ProcessExits(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    exits.watch([status(process.pid)])
    process.send_signal(signal.SIGKILL)
    monkeypatch.setattr(supervised.node_state, "oom_kills", lambda pids: [line.format(pid) for pid in pids])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert exits.describe("env/1") == "killed by the kernel at 1.2 GB: out of memory in its memory cgroup"
    process.communicate()
    exits.close()


def test_only_the_loss_of_a_worker_is_explained(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "env-1.log").write_text("Fatal Python error: Aborted\n")
    lost = RunError("env/1.collect: its process ended", exit_status=ExitStatus.worker_lost, worker="env/1")
    other = RunError("env/1.collect failed", exit_status=ExitStatus.unexpected, worker="env/1")
    for failure in (lost, other):
        ProcessExits(tmp_path).explain(failure)
    assert lost.message == "env/1.collect: its process ended: killed by SIGABRT; its stack is in logs/env-1.log"
    assert other.message == "env/1.collect failed"
