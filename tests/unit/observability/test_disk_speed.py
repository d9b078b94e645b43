"""A slow disk is reported during a write and after it; a fast one never."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rlrun.observability import disk_speed
from rlrun.observability.disk_speed import DiskSpeed, flush_seconds, folder_bytes, write_limit_s


@pytest.mark.parametrize(
    ("expected_bytes", "usual_s", "limit_s"),
    [(4e6, None, 10.0), (4e9, None, 200.0), (4e9, 20.0, 60.0), (4e9, 500.0, 200.0), (4e6, 60.0, 10.0)],
    ids=["small", "large", "known", "known as slow", "small and known as slow"],
)
def test_how_long_a_write_may_take(expected_bytes: float, usual_s: float | None, limit_s: float) -> None:
    assert write_limit_s(expected_bytes, usual_s) == limit_s


def test_a_write_that_hangs_is_reported_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_speed, "MIN_REPORT_S", 0.05)
    monkeypatch.setattr(disk_speed, "_is_quick", lambda folder: False)
    said: list[str] = []
    with DiskSpeed(tmp_path, said.append).watched("checkpoint of step 3", 4e4, None):
        end = time.monotonic() + 20
        while not said and time.monotonic() < end:
            time.sleep(0.01)
        assert said == [
            f"checkpoint of step 3: 0 s so far for about 0 MB: is the disk of {tmp_path} slow, or does it hang?"
        ]


def test_a_write_that_ends_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_speed, "MIN_REPORT_S", 0.3)
    said: list[str] = []
    with DiskSpeed(tmp_path, said.append).watched("checkpoint of step 3", 0, None):
        pass
    time.sleep(0.5)
    assert not said


def test_a_slow_disk_is_reported_once_a_run(tmp_path: Path) -> None:
    said: list[str] = []
    disk = DiskSpeed(tmp_path, said.append)
    for num_bytes, seconds in [(4e6, 0.1), (4e6, 4.9), (80e9, 200.0)]:
        disk.check_write("checkpoint of step 3", num_bytes, seconds, lambda *_: 1e3)
    assert not said
    for _ in range(2):
        disk.check_write("checkpoint of step 4", 15e6, 6.0, lambda folder, num_bytes: 5.0)
    assert len(said) == 1 and said[0].startswith("checkpoint of step 4: 6.0 s for 15.0 MB: the disk of")


def test_a_slow_processor_is_no_slow_disk(tmp_path: Path) -> None:
    said: list[str] = []
    tried: list[tuple[str, int]] = []

    def try_disk(folder: str, num_bytes: int) -> float:
        tried.append((folder, num_bytes))
        return 0.4  # what an idle disk takes

    DiskSpeed(tmp_path, said.append).check_write("checkpoint of step 4", 16.6e6, 5.6, try_disk)
    assert not said and tried == [(str(tmp_path), 16_000_000)]


@pytest.mark.parametrize("idle_s", [1.0, 19.0])
@pytest.mark.parametrize("is_quick", [True, False])
def test_a_host_without_idle_cores_whose_disk_answers_says_nothing_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_s: float, is_quick: bool
) -> None:
    monkeypatch.setattr(disk_speed, "idle_core_seconds", lambda: 500.0 + idle_s)
    monkeypatch.setattr(disk_speed, "is_throttled", lambda: False)
    monkeypatch.setattr(disk_speed, "_is_quick", lambda folder: is_quick)
    monkeypatch.setattr(os, "getloadavg", lambda: (50.0, 50.0, 50.0))  # of work that has ended
    said: list[str] = []
    DiskSpeed(tmp_path, said.append)._late("checkpoint of step 3", 4e4, 10.0, time.monotonic() - 10.0, 500.0)
    assert bool(said) == (idle_s > 10.0 or not is_quick)


def test_a_process_that_was_stopped_knows_nothing_of_the_disk(tmp_path: Path) -> None:
    said: list[str] = []
    DiskSpeed(tmp_path, said.append)._late("checkpoint of step 3", 4e4, 10.0, time.monotonic() - 300.0, 0.0)
    assert not said


def test_a_trial_leaves_no_file(tmp_path: Path) -> None:
    assert flush_seconds(tmp_path, 1000) > 0 and not list(tmp_path.iterdir())
    assert flush_seconds(tmp_path / "none", 1000) == 0.0


def test_the_size_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(100))
    (tmp_path / "c").write_bytes(bytes(11))
    assert folder_bytes(tmp_path) == 111 and folder_bytes(tmp_path / "none") == 0
