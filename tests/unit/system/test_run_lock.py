"""One run per folder: a second run is refused, waits, or takes the lock over, also from another host."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlrun.system import run_lock
from rlrun.system.errors import RunError
from rlrun.system.run_lock import LOCK, Holder, RunLock

ELSEWHERE = Holder("node-7", 4711, 123, "another boot", "2026-01-31 09:00:00 +0100", None)
HOLD = """
import sys, time
from pathlib import Path
from rlrun.system.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire(print)
print("held", flush=True)
sys.stdin.readline()
lock.release()
"""


@pytest.fixture
def hold(tmp_path: Path):
    """Another process that holds the lock of `tmp_path` until it is released."""
    processes = []

    def call(**environment: str) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | environment)
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield call
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def no_file_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without file locks."""
    monkeypatch.setattr(run_lock, "_flock", lambda file: False)
    monkeypatch.setattr(run_lock, "_SETTLE_S", 0.0)


def left_by(holder: Holder, folder: Path, age_s: float) -> Path:
    """Write a lock that was last renewed `age_s` ago."""
    file = folder / LOCK
    file.write_text(json.dumps(dataclasses.asdict(holder)))
    renewed_s = time.time() - age_s
    os.utime(file, (renewed_s, renewed_s))
    return file


def refused(folder: Path, notes: list[str]) -> RunError:
    with pytest.raises(RunError) as raised:
        RunLock(folder).acquire(notes.append)
    assert raised.value.key == "output_dir" and raised.value.value == str(folder)
    return raised.value


def taken(folder: Path, notes: list[str]) -> None:
    """Acquire and release the lock of a folder."""
    lock = RunLock(folder)
    lock.acquire(notes.append)
    assert json.loads((folder / LOCK).read_text())["pid"] == os.getpid()
    lock.release()
    assert not (folder / LOCK).exists()


def test_the_second_is_refused_at_once_with_host_process_and_since_when(hold, tmp_path: Path, notes) -> None:
    holder = hold()
    began = time.monotonic()
    error = refused(tmp_path, notes)
    assert time.monotonic() - began < 5.0 and not notes
    told = json.loads((tmp_path / LOCK).read_text())
    assert f"process {holder.pid} on {told['host']}, since {told['started_at']}" in error.cause
    assert str(holder.pid) in error.remedy
    holder.communicate("end\n")
    taken(tmp_path, notes)
    assert not notes


def test_one_process_cannot_hold_it_twice(tmp_path: Path, notes) -> None:
    lock = RunLock(tmp_path)
    lock.acquire(notes.append)
    assert str(os.getpid()) in refused(tmp_path, notes).cause
    lock.release()
    lock.release()
    taken(tmp_path, notes)


def test_the_lock_of_a_killed_run_is_taken_over_with_a_note(hold, tmp_path: Path, notes) -> None:
    holder = hold()
    holder.kill()
    holder.wait()
    taken(tmp_path, notes)
    (told,) = notes
    assert "took over" in told and f"process {holder.pid} on" in told


def test_a_lock_that_is_being_written_is_read_again(hold, tmp_path: Path, notes) -> None:
    holder = hold()
    written = (tmp_path / LOCK).read_text()
    os.truncate(tmp_path / LOCK, 0)
    writing = threading.Timer(0.3, (tmp_path / LOCK).write_text, [written])
    writing.start()
    assert str(holder.pid) in refused(tmp_path, notes).cause
    assert not notes


def test_a_damaged_lock_is_taken(tmp_path: Path, notes) -> None:
    (tmp_path / LOCK).write_bytes(b"\xff\0")
    taken(tmp_path, notes)


@pytest.mark.usefixtures("no_file_locks")
def test_without_file_locks_the_process_itself_is_looked_up(tmp_path: Path, notes) -> None:
    this = Holder.this_process()
    others = [dataclasses.replace(this, pid=os.getppid(), process_started=run_lock._process_start(os.getppid()))]
    left_by(others[0], tmp_path, 3600)
    assert str(os.getppid()) in refused(tmp_path, notes).cause
    for dead in (dataclasses.replace(this, process_started=1), dataclasses.replace(this, pid=2**22 + 1)):
        left_by(dead, tmp_path, 0)
        taken(tmp_path, notes)
    assert len(notes) == 2


@pytest.mark.usefixtures("no_file_locks")
def test_of_two_that_start_together_the_one_that_wrote_last_stays(tmp_path: Path, notes, monkeypatch) -> None:
    monkeypatch.setattr(run_lock.time, "sleep", lambda _: left_by(ELSEWHERE, tmp_path, 0))
    assert "node-7" in refused(tmp_path, notes).cause


def test_a_stale_lock_of_another_host_is_taken_over(tmp_path: Path, notes) -> None:
    left_by(ELSEWHERE, tmp_path, run_lock.STALE_S + 5)
    taken(tmp_path, notes)
    assert "took over" in notes[0] and ELSEWHERE.name in notes[0]


def test_a_fresh_lock_of_another_host_is_refused_once_it_is_renewed(tmp_path: Path, notes) -> None:
    file = left_by(ELSEWHERE, tmp_path, 2)
    renewing = threading.Timer(0.5, os.utime, [file])
    renewing.start()
    assert ELSEWHERE.name in refused(tmp_path, notes).cause
    assert "to show that it lives" in notes[0]


def test_a_lock_of_another_host_that_is_not_renewed_is_taken_over(tmp_path: Path, notes, monkeypatch) -> None:
    monkeypatch.setattr(run_lock, "STALE_S", 2.5)
    left_by(ELSEWHERE, tmp_path, 0)
    taken(tmp_path, notes)
    assert "to show that it lives" in notes[0] and "took over" in notes[1]


def test_a_process_of_the_same_job_is_waited_for(hold, tmp_path: Path, notes, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    holder = hold(SLURM_JOB_ID="12")
    ending = threading.Timer(0.5, holder.communicate, ["end\n"])
    ending.start()
    taken(tmp_path, notes)
    assert "same job 12" in notes[0] and len(notes) == 1
    ending.join()


def test_a_process_of_another_job_is_not_waited_for(hold, tmp_path: Path, notes, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    hold(SLURM_JOB_ID="12")
    refused(tmp_path, notes)
    assert not notes


def test_the_holder_renews_it_and_notices_a_successor(tmp_path: Path, notes, monkeypatch) -> None:
    monkeypatch.setattr(run_lock, "RENEW_S", 0.05)
    lock = RunLock(tmp_path)
    lock.acquire(notes.append)
    os.utime(tmp_path / LOCK, (0, 0))
    until(lambda: (tmp_path / LOCK).stat().st_mtime > 0)
    lock.require()
    left_by(ELSEWHERE, tmp_path, 0)
    until(lambda: lock._successor is not None)
    with pytest.raises(RunError, match="Another run writes"):
        lock.require()
    lock.release()
    assert (tmp_path / LOCK).exists(), "it is the other's now"


def until(is_so) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
