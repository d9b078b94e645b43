"""Pictures beyond the budget are read each time, those within it once, and a batch is the same either way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlrun.config.schema import DemosConfig
from rlrun.data.lerobot import DemoDataset, pictures
from rlrun.data.lerobot.pictures import PictureMemory
from tests.unit.data.lerobot_sets import drawn, made, written


class Source:
    """A camera whose picture of frame i is full of i; counts what is read."""

    def __init__(self) -> None:
        self.read_frames: list[int] = []

    def size(self) -> tuple[int, int]:
        return 2, 2

    def read(self, frames: np.ndarray, out: np.ndarray) -> None:
        assert (np.diff(frames) > 0).all()
        self.read_frames += frames.tolist()
        out[:] = frames[:, None, None, None]


LENGTHS = np.array([3, 4, 5])
FRAME_BYTES = 2 * 2 * 3


@pytest.mark.parametrize("num_held", [0, 2, 3, 7, 11, 12, 1000])
def test_a_batch_does_not_depend_on_the_budget(num_held: int) -> None:
    memory = PictureMemory([Source()], LENGTHS, (2, 2), num_held * FRAME_BYTES)
    random = np.random.default_rng(0)
    for _ in range(20):
        frames = random.integers(0, 12, 5)
        assert memory.take(frames)[:, 0, 0, 0, 0].tolist() == frames.tolist()
    assert memory._held.nbytes <= num_held * FRAME_BYTES


def test_what_fits_is_read_once() -> None:
    source = Source()
    memory = PictureMemory([source], LENGTHS, (2, 2), 12 * FRAME_BYTES)
    for _ in range(3):
        memory.take(np.array([11, 0, 5, 5]))
    assert sorted(source.read_frames) == list(range(12))


def test_without_room_each_frame_of_a_batch_is_read_once() -> None:
    source = Source()
    memory = PictureMemory([source], LENGTHS, (2, 2), 3 * FRAME_BYTES)
    memory.take(np.array([1]))
    source.read_frames.clear()
    memory.take(np.array([8, 1, 2, 8, 4]))
    assert source.read_frames == [4, 8]


def test_few_files_are_open_and_row_groups_are_read_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_OPEN", 2)
    monkeypatch.setattr(pictures, "_PICTURES_AT_ONCE", 3)
    lengths = [9, 2, 1, 3]
    folder = written(tmp_path / "set", made(lengths), "v2.1")
    dataset = DemoDataset.open(folder, DemosConfig(memory_gb=0))
    order = np.array([14, 0, 8, 3, 9, 11, 14, 2])
    assert np.array_equal(dataset.batch(order, 1).images[:, 0], np.stack([drawn(i) for i in order]))
    assert len(dataset._pictures._sources[0]._opened._open) <= 2
