"""Datasets with files that would never answer, that lead elsewhere, or that hold more than they say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rlrun.data.lerobot import DatasetError, DemoDataset
from rlrun.data.lerobot.tables import dataset_digest
from tests.unit.data.lerobot_sets import TOP, made, put, write_video, written

DATA = "data/chunk-000/file-000.parquet"


def refused(folder: Path) -> str:
    with pytest.raises(DatasetError) as found:
        dataset = DemoDataset.load(folder)
        dataset.batch(np.arange(2), 1)
    return str(found.value)


@pytest.mark.parametrize("name", ["meta/info.json", "meta/tasks.parquet", DATA])
def test_a_named_pipe_is_not_opened(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "set", made())
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert name in (said := refused(folder)) and "pipe" in said


@pytest.mark.parametrize("name", ["meta/info.json", DATA])
def test_links_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "set", made())
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    assert "leads out of the dataset" in refused(folder)


def test_links_inside_and_those_of_the_hub_s_cache_are_followed(tmp_path: Path) -> None:
    folder = written(tmp_path / "snapshots" / "a1b2", made())
    (tmp_path / "blobs").mkdir()
    (folder / DATA).rename(tmp_path / "blobs" / "c3")
    (folder / DATA).symlink_to("../../../../blobs/c3")
    (folder / "meta/info.json").rename(folder / "meta/own.json")
    (folder / "meta/info.json").symlink_to("own.json")
    assert len(DemoDataset.load(folder)) == 15


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", made())
    with (folder / "meta/large.bin").open("wb") as file:
        file.truncate(9 * 10**9)
    assert "meta/large.bin" in refused(folder)
    assert len(dataset_digest(folder)) == 64


def test_many_equal_rows_in_few_bytes_are_not_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", made())
    put(folder / DATA, pa.table({name: pa.repeat(0, 2_000_000) for name in ("episode_index", "frame_index")}))
    assert "2000000 rows" in refused(folder)


def test_more_frames_than_info_counts_are_not_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", made())
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps(info | {"total_frames": 3}))
    assert "info.json counts 3" in refused(folder)


def test_a_video_of_larger_frames_is_not_decoded(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", made(cameras=(), videos=(TOP,)))
    (video,) = folder.glob("videos/**/*.mp4")
    write_video(video, [np.zeros((512, 512, 3), np.uint8)] * 15, "libx264")
    assert "512 x 512 pixels, more than info.json says" in refused(folder)


@pytest.mark.parametrize(
    "template", ["data/\0.parquet", "data/" + "x" * 10**6, "data/.x/f.parquet", "data/\x1b.parquet"]
)
def test_templates_that_name_no_file(tmp_path: Path, template: str) -> None:
    folder = written(tmp_path / "set", made())
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps(info | {"data_path": template}))
    assert len(refused(folder)) < 2_000
