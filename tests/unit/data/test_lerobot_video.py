"""Cameras that are stored as video: each frame is the one of its time, wherever a reader was before."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.schema import DemosConfig
from rlrun.data.lerobot import DatasetError, DemoDataset
from rlrun.data.lerobot.pictures import VideoReader, VideoReaders
from tests.unit.data.lerobot_sets import FPS, TOP, WRIST, drawn, made, write_video, written


def numbers(pictures: np.ndarray) -> list[int]:
    """The numbers that pictures were drawn of, uint8 [M, N, H, W, 3], by their first camera."""
    return np.rint((pictures[:, 0, :, 2:10, 0].mean((1, 2)) - 8) / 15).astype(int).tolist()


@pytest.mark.parametrize("memory_gb", [1.0, 0.0])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_frames_are_those_of_their_times(tmp_path: Path, version: str, memory_gb: float) -> None:
    folder = written(tmp_path / "set", made(cameras=(), videos=(TOP,)), version)
    dataset = DemoDataset.open(folder, DemosConfig(memory_gb=memory_gb))
    assert dataset.features.cameras == ("top",) and dataset.features.camera_sizes == ((16, 24),)
    order = np.random.default_rng(0).permutation(30) % 15
    assert numbers(dataset.batch(order, 1).images) == order.tolist()
    assert numbers(dataset.batch(order[::-1], 1).images) == order[::-1].tolist()
    assert numbers(DemoDataset.open(folder, DemosConfig(episodes=[1])).batch(np.arange(5), 1).images) == [4, 5, 6, 7, 8]


def test_images_and_videos_of_one_set_stand_side_by_side(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", made(cameras=(TOP,), videos=(WRIST,)))
    dataset = DemoDataset.load(folder)
    assert dataset.features.cameras == ("top", "wrist")
    pictures = dataset.batch(np.arange(15), 1).images
    assert np.array_equal(pictures[:, 0], np.stack([drawn(i) for i in range(15)]))
    assert numbers(pictures[:, 1:]) == list(range(15))


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
@pytest.mark.parametrize("group", ["2", "250"])
def test_a_long_video_is_read_at_random(tmp_path: Path, codec: str, group: str) -> None:
    """Key frames are two or many frames apart; later frames lie behind the reader's present place."""
    file = tmp_path / "long.mp4"
    pictures = [np.kron(drawn(i % 15), np.ones((4, 4, 1), np.uint8)) for i in range(60)]
    write_video(file, pictures, codec, g=group)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "else one test starves all others of its machine"
    reader = VideoReader(file)
    for i in [0, 59, 30, 31, 33, 32, 3, 58, 0, 1]:
        found = reader.frame_at(i / FPS + 0.01, 0.5 / FPS)
        assert found.shape == (64, 96, 3) and abs(found[:, 8:40, 0].mean() - (8 + 15 * (i % 15))) < 4, i
    for wrong in (6.2, -0.3):
        with pytest.raises(
            DatasetError, match=f"a frame is wanted at {wrong:.4f} s, and the video has the nearest frame at"
        ):
            reader.frame_at(wrong, 0.5 / FPS)


def test_few_decoders_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.data.lerobot.pictures.MAX_OPEN", 2)
    for i in range(4):
        write_video(tmp_path / f"{i}.mp4", [drawn(i)] * 3)
    readers = VideoReaders()
    for i in (0, 1, 2, 3, 0, 2):
        assert numbers(readers.get(tmp_path / f"{i}.mp4").frame_at(0.1, 0.05)[None, None]) == [i]
        assert len(readers._open) <= 2


def test_a_missing_decoder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "set", made(cameras=(), videos=(TOP,)))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DatasetError, match="PyAV, which decodes it, is missing") as refused:
        DemoDataset.load(folder)
    assert refused.value.remedy == "pip install 'av>=15', or pip install 'rlrun[video]'"


@pytest.mark.parametrize("kind", ["missing", "pointer", "cut"])
def test_damaged_videos_are_named(tmp_path: Path, kind: str) -> None:
    folder = written(tmp_path / "set", made(cameras=(), videos=(TOP,)))
    file = folder / f"videos/{TOP}/chunk-000/file-000.mp4"
    if kind == "missing":
        file.unlink()
    else:
        file.write_bytes(b"version https://git-lfs.github.com" if kind == "pointer" else file.read_bytes()[:500])
    with pytest.raises(DatasetError) as refused:
        DemoDataset.load(folder)
    assert refused.value.path == str(file)
    assert {"missing": "missing", "pointer": "Git LFS", "cut": "no video that can be read"}[kind] in refused.value.cause
