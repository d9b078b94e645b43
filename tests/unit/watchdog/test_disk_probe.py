"""A disk that hangs is detected by a probe that does not hang."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from rlrun.watchdog.evidence import write_archive
from rlrun.watchdog.probes import DiskProbe, is_responsive


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("rlrun.watchdog.probes.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def settled(probe):
    """Wait for the probe's thread, and check again."""
    probe._thread.join(timeout=10)
    return probe.check()


def test_a_disk_that_responds(tmp_path, clock):
    probe = DiskProbe(tmp_path)
    assert probe.check() == 0.0
    clock[0] += 30.0
    assert settled(probe) == 0.0 and settled(probe) == 0.0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_hangs_and_recovers(tmp_path, clock):
    thawed, tries = threading.Event(), []

    def write(folder):
        tries.append(folder)
        thawed.wait(timeout=30)

    probe = DiskProbe(tmp_path, write)
    assert probe.check() == 0.0
    clock[0] += 12.0
    assert probe.check() == 12.0 and len(tries) == 1
    thawed.set()
    probe._thread.join(timeout=10)
    assert probe.check() == 0.0
    probe._thread.join(timeout=10)
    assert len(tries) == 2


@pytest.mark.parametrize("error", [OSError("full"), FileNotFoundError("gone")])
def test_an_error_is_a_response(tmp_path, clock, error):
    def write(folder):
        return error

    probe = DiskProbe(tmp_path, write)
    probe.check()
    assert settled(probe) == 0.0


def test_a_single_try(tmp_path, monkeypatch):
    thawed = threading.Event()
    assert is_responsive(tmp_path, 10.0) and is_responsive(tmp_path / "not there", 10.0)
    monkeypatch.setattr("rlrun.watchdog.probes.probe_write", lambda folder: thawed.wait(timeout=30))
    assert not is_responsive(tmp_path, 0.2)
    thawed.set()


def test_an_archive_goes_elsewhere_when_the_disk_hangs(tmp_path, monkeypatch):
    hanging, thawed = tmp_path / "run" / "alarms", threading.Event()
    monkeypatch.setattr("rlrun.watchdog.evidence._STORE_S", 0.3)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "elsewhere"))
    from rlrun.watchdog import evidence

    original = evidence._write_tar

    def pack(folder, files, **how):
        if folder == hanging:
            thawed.wait(timeout=30)
        return original(folder, files, **how)

    monkeypatch.setattr("rlrun.watchdog.evidence._write_tar", pack)
    began = time.monotonic()
    archive, remark = write_archive(tmp_path / "run", {"alarm.txt": "x"})
    assert archive.exists() and archive.is_relative_to(tmp_path / "elsewhere") and time.monotonic() - began < 20
    assert archive.stat().st_mode & 0o777 == 0o600 and archive.parent.stat().st_mode & 0o777 == 0o700
    assert f"not in {tmp_path / 'run'}, whose disk took nothing" in remark
    thawed.set()


def test_an_archive_in_the_run_folder_needs_no_remark(tmp_path):
    archive, remark = write_archive(tmp_path, {"alarm.txt": "x"})
    assert archive.parent == tmp_path / "alarms" and remark == ""
