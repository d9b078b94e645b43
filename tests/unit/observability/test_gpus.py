"""Readings of nvidia-smi are parsed and limited in time, and may be missing."""

import time
from pathlib import Path

import pytest

from rlrun.observability.dashboard import GpuReading, GpuSampler, read_gpus
from rlrun.system.nvidia_smi import UnansweredError
from tests.standins.nvidia_smi import stand_in

TWO = "0, NVIDIA A100-SXM4-80GB, 87, 40960, 81920, 312.50\n1, NVIDIA A100-SXM4-80GB, [N/A], 12, 81920, [N/A]\n"


def test_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f"printf '{TWO}'".replace("\n", "\\n"))
    first, second = read_gpus()
    assert first == GpuReading(0, "NVIDIA A100-SXM4-80GB", 87.0, 40 * 1024**3, 80 * 1024**3, 312.5)
    assert (second.use_percent, second.power_w) == (None, None)


def test_a_hanging_driver_takes_the_timeout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "exec sleep 30")
    start = time.monotonic()
    with pytest.raises(UnansweredError):
        read_gpus(timeout_s=0.2)
    assert time.monotonic() - start < 5


def test_no_gpu_is_an_empty_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpus() == []


def test_the_sampler_asks_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could not answer is not a host without GPUs."""
    said = f"[ -f {tmp_path}/second ] && echo '0, Orin, 1, [N/A], [N/A], 3' && exit; touch {tmp_path}/second; exit 9"
    stand_in(tmp_path, monkeypatch, said)
    sampler = GpuSampler(period_s=0.05)
    sampler.start()
    deadline = time.monotonic() + 20
    while not sampler.latest() and time.monotonic() < deadline:
        time.sleep(0.02)
    sampler.stop()
    assert [(gpu.name, gpu.memory_total_bytes) for gpu in sampler.latest()] == [("Orin", None)]


def test_the_sampler_keeps_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "echo '0, RTX 4090, 50, 100, 200, 300'")
    sampler = GpuSampler(period_s=0.05)
    assert sampler.latest() == []
    sampler.start()
    deadline = time.monotonic() + 20
    while not sampler.latest() and time.monotonic() < deadline:
        time.sleep(0.02)
    sampler.stop()
    assert [gpu.use_percent for gpu in sampler.latest()] == [50.0]
