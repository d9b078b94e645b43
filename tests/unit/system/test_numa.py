"""Processes beside their accelerator: which cores are near, and when a process is bound to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlrun.system.numa import bind_near, cores_near, parse_cores
from tests.standins.nvidia_smi import stand_in

CARDS = "echo '0, 00000000:07:00.0'; echo '1, 00000000:C7:00.0'; echo '2, 00010000:01:00.0'"
ALL = set(range(128))
FIRST, SECOND = set(range(32)) | set(range(64, 96)), set(range(32, 64)) | set(range(96, 128))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sockets of 32 cores, each with a card, and a card whose node the kernel does not know."""
    stand_in(tmp_path, monkeypatch, CARDS)
    for address, cores in (("0000:07:00.0", "0-31,64-95\n"), ("0000:c7:00.0", "32-63,96-127\n")):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(cores)
    for thread in ("7", "8"):
        (tmp_path / "proc/self/task" / thread).mkdir(parents=True)
    return tmp_path


def bound(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    accelerator: int,
    num_threads: int = 8,
    allowed: set[int] = ALL,
) -> dict[int, set[int]]:
    """Return the cores that each thread is bound to."""
    found: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(os, "sched_setaffinity", found.__setitem__)
    bind_near(accelerator, num_threads, machine)
    return found


def test_all_threads_are_bound_to_the_cores_beside_the_card(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bound(machine, monkeypatch, 0) == {7: FIRST, 8: FIRST}
    assert bound(machine, monkeypatch, 1) == {7: SECOND, 8: SECOND}
    few = set(range(16, 48))  # of a scheduler
    assert bound(machine, monkeypatch, 1, allowed=few) == {7: set(range(32, 48)), 8: set(range(32, 48))}


@pytest.mark.parametrize(
    ("accelerator", "num_threads", "allowed"),
    [
        (0, 65, ALL),  # it computes with more threads
        (0, 1, set(range(8))),  # it may use no others
        (1, 1, set(range(8))),  # it may use none of them
        (2, 1, ALL),  # the kernel does not know
        (3, 1, ALL),  # nvidia-smi does not list it
    ],
)
def test_a_process_that_would_not_gain_is_left_alone(
    machine: Path, monkeypatch: pytest.MonkeyPatch, accelerator: int, num_threads: int, allowed: set[int]
) -> None:
    assert bound(machine, monkeypatch, accelerator, num_threads, allowed) == {}


def test_a_failing_nvidia_smi_binds_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(machine, monkeypatch, "exit 9")
    assert cores_near(0, machine) == set()
    assert bound(machine, monkeypatch, 0) == {}


def test_lists_of_cores() -> None:
    assert parse_cores("0-2,8\n") == {0, 1, 2, 8}
    assert parse_cores("\n") == set()
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cores("all")
