"""What nvidia-smi cannot say is told with its words, and is not "no GPU"."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.system.nvidia_smi import UnansweredError, parse_mebibytes, query
from tests.standins.nvidia_smi import stand_in

FIELDS = ("name", "memory.total")


def test_no_program_and_no_devices_are_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert query(FIELDS) == []
    stand_in(tmp_path, monkeypatch, "echo 'No devices were found'; exit 6")
    assert query(FIELDS) == []


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9", "not communicate"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18", "version mismatch"),
        ("exit 1", "printed|ended with status 1: nothing"),
        ("echo 'RTX 4090'", "something else than 2 columns: 'RTX 4090'"),
        ("echo 'A100, 81920'; echo 'Unable to determine the device handle: GPU is lost'", "GPU is lost"),
        ("true", "something else than 2 columns: nothing"),
    ],
)
def test_its_words_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str) -> None:
    stand_in(tmp_path, monkeypatch, script)
    with pytest.raises(UnansweredError, match=told) as caught:
        query(FIELDS)
    assert "nvidia-smi --query-gpu=name,memory.total" in str(caught.value) and not caught.value.is_late


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "exec sleep 30")
    with pytest.raises(UnansweredError, match="not answered for 0.2 s") as caught:
        query(FIELDS, timeout_s=0.2)
    assert caught.value.is_late


def test_no_processes_are_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "true")
    assert query(FIELDS, "compute-apps") == []


@pytest.mark.parametrize(
    ("cell", "found"),
    [("81920", 80 * 2**30), ("81920 MiB", 80 * 2**30), ("[N/A]", None), ("[Not Supported]", None), ("ERR!", None)],
)
def test_memory_that_is_not_known_is_not_zero(cell: str, found: int | None) -> None:
    assert parse_mebibytes(cell) == found
