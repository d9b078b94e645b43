"""Demonstrations come back exactly, in LeRobot's layout; damage is refused with file, cause and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlrun.data.lerobot import (
    DatasetError,
    DemoDataset,
    DemoFeatures,
    DemoWriter,
    Episode,
    layout,
)

FEATURES = DemoFeatures(("zed_link", "wrist"), 8, 6, num_proprio=5, action_names=("arm/0", "arm/1", "grip"), fps=30)


def episode(seed: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (length, 2, 8, 6, 3), np.uint8)
    return images, rng.normal(size=(length, 5)).astype(np.float32), rng.normal(size=(length, 3)).astype(np.float32)


def recorded(seed: int) -> Episode:
    task = "turn on the radio" if seed % 2 else "pick up trash"
    return Episode(*episode(seed, 4 + seed), task, success=seed != 2, seed=seed)


def write(folder: Path, seeds: list[int]) -> Path:
    with DemoWriter(folder, FEATURES) as writer:
        for seed in seeds:
            writer.add(recorded(seed))
        return writer.finish()


def test_round_trip_is_exact(tmp_path: Path) -> None:
    dataset = DemoDataset.load(write(tmp_path / "demos", [1, 2, 3]))
    expected = [episode(seed, 4 + seed) for seed in (1, 2, 3)]
    for got, parts in zip((dataset.images, dataset.proprio, dataset.actions), zip(*expected, strict=True), strict=True):
        assert got.dtype == parts[0].dtype and np.array_equal(got, np.concatenate(parts))
    assert dataset.features == FEATURES
    assert dataset.seeds.tolist() == [1, 2, 3] and dataset.success.tolist() == [True, False, True]
    assert dataset.instructions == ("turn on the radio",) * 5 + ("pick up trash",) * 6 + ("turn on the radio",) * 7


def test_chunk_repeats_the_last_action_behind_the_end(tmp_path: Path) -> None:
    dataset = DemoDataset.load(write(tmp_path / "demos", [1, 2]))  # 5 and 6 frames
    batch = dataset.batch(np.array([0, 3, 4, 10]), 4)
    actions = dataset.actions
    assert np.array_equal(batch.actions[0], actions[:4])
    assert np.array_equal(batch.actions[1], actions[[3, 4, 4, 4]])
    assert np.array_equal(batch.actions[2], actions[[4, 4, 4, 4]])
    assert np.array_equal(batch.actions[3], actions[[10, 10, 10, 10]])
    assert batch.step_valid.tolist() == [[True] * 4, [True, True, False, False]] + [[True, False, False, False]] * 2
    assert np.array_equal(batch.images, dataset.images[[0, 3, 4, 10]])
    assert batch.instructions[-1] == "pick up trash"


def test_statistics_against_numpy(tmp_path: Path) -> None:
    dataset = DemoDataset.load(write(tmp_path / "demos", [1, 2, 3]))
    norm = dataset.norm_stats()
    for name, rows in (("action", dataset.actions), ("proprio", dataset.proprio)):
        for stat, share in (("q01", 0.01), ("q99", 0.99)):
            assert np.allclose(norm[name][stat], np.quantile(rows.astype(np.float64), share, axis=0))
        assert np.allclose(norm[name]["std"], rows.std(0), atol=1e-6)
    assert norm["action"]["mask"] == [True] * 3
    assert dataset.norm_stats([True, True, False])["action"]["mask"] == [True, True, False]
    wrist = dataset.stats["observation.images.wrist"]
    pixels = dataset.images[:, 1] / 255.0
    assert np.allclose(np.ravel(wrist["mean"]), pixels.mean((0, 1, 2)))
    assert np.allclose(np.ravel(wrist["std"]), pixels.std((0, 1, 2)))
    assert np.allclose(np.ravel(wrist["max"]), pixels.max((0, 1, 2)))
    json.dumps(norm)  # goes into the policy's config.json


def test_layout_is_lerobots(tmp_path: Path) -> None:
    folder = write(tmp_path / "demos", [1, 2])
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "checksums.json",
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet",
    }
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["total_frames"] == 11 and info["splits"] == {"train": "0:2"}
    data = pq.ParquetFile(folder / "data/chunk-000/file-000.parquet")
    assert data.num_row_groups == 2  # one per episode
    assert set(data.schema_arrow.names) == set(info["features"])
    first = data.read().slice(6, 1).to_pylist()[0]
    assert (first["episode_index"], first["frame_index"], first["index"], first["task_index"]) == (1, 1, 6, 1)
    assert first["timestamp"] == pytest.approx(1 / 30)
    assert first["observation.images.wrist"]["bytes"].startswith(b"\x89PNG")
    tasks = pq.read_table(folder / "meta/tasks.parquet").to_pydict()
    assert tasks == {"task_index": [0, 1], "task": ["turn on the radio", "pick up trash"]}


def test_large_datasets_continue_in_further_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "FILE_MEGABYTES", 0)
    monkeypatch.setattr(layout, "FILES_PER_CHUNK", 2)
    folder = write(tmp_path / "demos", [1, 2, 3])
    names = sorted(str(path.relative_to(folder / "data")) for path in (folder / "data").rglob("*.parquet"))
    assert names == ["chunk-000/file-000.parquet", "chunk-000/file-001.parquet", "chunk-001/file-000.parquet"]
    assert DemoDataset.load(folder).seeds.tolist() == [1, 2, 3]


def test_complete_or_absent(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="simulator died"), DemoWriter(tmp_path / "demos", FEATURES) as writer:
        writer.add(recorded(1))
        raise RuntimeError("simulator died")
    with pytest.raises(ValueError, match="no episode"), DemoWriter(tmp_path / "demos", FEATURES) as writer:
        writer.finish()
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "demos", [1])
    with pytest.raises(DatasetError, match="exists already"):
        DemoWriter(tmp_path / "demos", FEATURES)


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, lambda a: a[:, :1], r"images is uint8 \(5, 1, 8, 6, 3\)"),
        (0, lambda a: a.astype(np.float32), "images is float32"),
        (1, lambda a: a[:-1], r"proprio is float32 \(4, 5\)"),
        (2, lambda a: a[:, :2], r"actions is float32 \(5, 2\)"),
        (2, lambda a: a * np.float32(np.nan), "actions holds a NaN"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, index: int, change, message: str) -> None:
    arrays = list(episode(1, 5))
    arrays[index] = change(arrays[index])
    with DemoWriter(tmp_path / "demos", FEATURES) as writer, pytest.raises(ValueError, match=message):
        writer.add(Episode(*arrays, "task", success=True, seed=1))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def spoil_images(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\x89PNG", b"\x89JPG"))


def drop_q01(path: Path) -> None:
    stats = json.loads(path.read_text())
    del stats["action"]["q01"]
    path.write_text(json.dumps(stats))


def old_version(path: Path) -> None:
    path.write_text(path.read_text().replace("v3.0", "v2.1"))


def more_proprio(path: Path) -> None:
    info = json.loads(path.read_text())
    info["features"]["observation.state"]["shape"] = [7]
    path.write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("data/chunk-000/file-000.parquet", truncate, "it is damaged"),
        ("data/chunk-000/file-000.parquet", Path.unlink, "the file is missing"),
        ("data/chunk-000/file-000.parquet", spoil_images, "frame 0 is no image"),
        ("meta/info.json", truncate, "it is not JSON"),
        ("meta/info.json", old_version, "layout version v2.1"),
        ("meta/stats.json", Path.unlink, "the file is missing"),
        ("meta/stats.json", drop_q01, "action/q01 has 0 usable numbers, 3 are needed"),
        ("meta/info.json", more_proprio, "observation.state/min has 5 usable numbers, 7 are needed"),
        ("meta/episodes/chunk-000/file-000.parquet", truncate, "it is damaged"),
    ],
)
def test_damage_is_refused(tmp_path: Path, name: str, damage, message: str) -> None:
    folder = write(tmp_path / "demos", [1])
    damage(folder / name)
    with pytest.raises(DatasetError) as refused:
        DemoDataset.load(folder)
    assert name in refused.value.cause and "Remedy: " in str(refused.value)
    (folder / "checksums.json").unlink()  # as datasets that others recorded
    with pytest.raises(DatasetError) as refused:
        DemoDataset.load(folder)
    assert message in str(refused.value) and "Remedy: " in str(refused.value)
    assert name.split("/")[0] in refused.value.path


def test_one_bit_of_a_recorded_dataset_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "demos", [1])
    data = folder / "data/chunk-000/file-000.parquet"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    with pytest.raises(DatasetError, match=r"data/chunk-000/file-000.parquet is damaged \(its checksum differs\)"):
        DemoDataset.load(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not exist"):
        DemoDataset.load(tmp_path / "nowhere")
