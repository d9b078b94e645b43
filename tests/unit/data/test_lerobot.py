"""Demonstrations come back exactly, in LeRobot's layout; damage is refused with file, cause and remedy."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from rlrun.data.lerobot import (
    DatasetError,
    DemoDataset,
    DemoFeatures,
    DemoWriter,
    Episode,
    layout,
)
from rlrun.data.lerobot.pictures import decode_image, picture_size

FEATURES = DemoFeatures(("zed_link", "wrist"), ((8, 6),) * 2, 5, 3, 30.0, action_names=("arm/0", "arm/1", "grip"))


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


def pictures(seeds: list[int]) -> np.ndarray:
    return np.concatenate([episode(seed, 4 + seed)[0] for seed in seeds])


LEFT_OUT = (
    "1 of 3 episodes did not succeed, and are imitated like the others; demos.only_successful=true leaves them out.",
)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    dataset = DemoDataset.load(write(tmp_path / "demos", [1, 2, 3]))
    expected = [episode(seed, 4 + seed) for seed in (1, 2, 3)]
    batch = dataset.batch(np.arange(len(dataset)), 1)
    for got, parts in zip((batch.images, dataset.proprio, dataset.actions), zip(*expected, strict=True), strict=True):
        assert got.dtype == parts[0].dtype and np.array_equal(got, np.concatenate(parts))
    assert dataset.features == FEATURES
    assert dataset.seeds.tolist() == [1, 2, 3] and dataset.success.tolist() == [True, False, True]
    assert dataset.sentences == ("pick up trash", "turn on the radio") and dataset.left_out == LEFT_OUT
    assert batch.instructions == ("turn on the radio",) * 5 + ("pick up trash",) * 6 + ("turn on the radio",) * 7


def test_chunk_repeats_the_last_action_behind_the_end(tmp_path: Path) -> None:
    dataset = DemoDataset.load(write(tmp_path / "demos", [1, 2]))  # 5 and 6 frames
    batch = dataset.batch(np.array([0, 3, 4, 10]), 4)
    actions = dataset.actions
    assert np.array_equal(batch.actions[0], actions[:4])
    assert np.array_equal(batch.actions[1], actions[[3, 4, 4, 4]])
    assert np.array_equal(batch.actions[2], actions[[4, 4, 4, 4]])
    assert np.array_equal(batch.actions[3], actions[[10, 10, 10, 10]])
    assert batch.step_valid.tolist() == [[True] * 4, [True, True, False, False]] + [[True, False, False, False]] * 2
    assert np.array_equal(batch.images, pictures([1, 2])[[0, 3, 4, 10]])
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
    pixels = pictures([1, 2, 3])[:, 1] / 255.0
    assert np.allclose(np.ravel(wrist["mean"]), pixels.mean((0, 1, 2)))
    assert np.allclose(np.ravel(wrist["std"]), pixels.std((0, 1, 2)))
    assert np.allclose(np.ravel(wrist["max"]), pixels.max((0, 1, 2)))
    json.dumps(norm)  # must fit into the policy's config.json


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


def old_version(path: Path) -> None:
    path.write_text(path.read_text().replace("v3.0", "v1.6"))


def more_proprio(path: Path) -> None:
    info = json.loads(path.read_text())
    info["features"]["observation.state"]["shape"] = [7]
    path.write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("data/chunk-000/file-000.parquet", truncate, "it is damaged"),
        ("data/chunk-000/file-000.parquet", Path.unlink, "the file is missing"),
        ("data/chunk-000/file-000.parquet", spoil_images, "frame 0 of episode 0 is no image"),
        ("meta/info.json", truncate, "it is not JSON"),
        ("meta/info.json", old_version, "layout version v1.6"),
        ("meta/info.json", more_proprio, "its columns do not fit the features of info.json"),
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
    assert name.split("/")[0] in refused.value.path or "data" in refused.value.path


def test_one_bit_of_a_recorded_dataset_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "demos", [1])
    data = folder / "data/chunk-000/file-000.parquet"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    with pytest.raises(DatasetError, match=r"data/chunk-000/file-000.parquet is damaged \(its checksum differs\)"):
        DemoDataset.load(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not exist"):
        DemoDataset.load(tmp_path / "nowhere")


# --- datasets that somebody else made -------------------------------------------------------------

INFO, STATS = "meta/info.json", "meta/stats.json"
EPISODES, DATA = "meta/episodes/chunk-000/file-000.parquet", "data/chunk-000/file-000.parquet"


def refused(folder: Path) -> DatasetError:
    (folder / "checksums.json").unlink(missing_ok=True)
    with pytest.raises(DatasetError) as error:
        DemoDataset.load(folder)
    assert error.value.remedy
    return error.value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("features/observation.images.wrist/shape", [-1, 6, 3]),
        ("features/observation.images.wrist/shape", ["8", 6, 3]),
        ("features/observation.images.wrist/shape", [200_000, 200_000, 3]),
        ("features/observation.images.wrist/shape", 8),
        ("features/observation.state/shape", [-5]),
        ("features/observation.state/shape", [1e12]),
        ("features/action/shape", [2.5]),
        ("features/action/shape", [[3]]),
        ("features/action", None),
        ("features", []),
        ("fps", "thirty"),
        ("fps", -1),
        ("fps", 1e400),
        ("total_episodes", 1e12),
        ("total_episodes", -1),
        ("total_episodes", "two"),
    ],
)
def test_absurd_descriptions(tmp_path: Path, path: str, value: object) -> None:
    folder = write(tmp_path / "demos", [1, 2])
    info = json.loads((folder / INFO).read_text())
    place, (*parents, name) = info, path.split("/")
    for parent in parents:
        place = place[parent]
    place[name] = value
    (folder / INFO).write_text(json.dumps(info))
    assert "meta" in refused(folder).path


@pytest.mark.parametrize(
    "value", ["x", None, [], [1, 2], ["a", "b", "c"], [[1], [2, 3]], {"a": 1}, [1, 2, float("nan")]]
)
def test_absurd_statistics_are_computed(tmp_path: Path, value: object) -> None:
    folder = write(tmp_path / "demos", [1])
    stats = json.loads((folder / STATS).read_text())
    stats["action"]["q01"] = value
    (folder / STATS).write_text(json.dumps(stats))
    (folder / "checksums.json").unlink()
    dataset = DemoDataset.load(folder)
    assert np.allclose(dataset.norm_stats()["action"]["q01"], np.quantile(dataset.actions, 0.01, axis=0))
    (folder / STATS).write_text("[" * 2000 + "]" * 2000)
    assert "nest deeper" in refused(folder).cause


def with_column(file: Path, name: str, values: list) -> None:
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, pa.array(values)), file)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("data/chunk_index", ["../../x", "0"]),
        ("data/chunk_index", [-1, 0]),
        ("data/file_index", [None, 0]),
        ("episode_index", ["a", "b"]),
        ("episode_index", [0, 0]),
        ("length", [10**12, 6]),
        ("length", ["x", "y"]),
        ("length", [0, 6]),
        ("tasks", [1, 2]),
        ("tasks", [[1], [2]]),
        ("seed", ["a", "b"]),
        ("success", ["yes", "no"]),
    ],
)
def test_absurd_episode_tables(tmp_path: Path, name: str, values: list) -> None:
    folder = write(tmp_path / "demos", [1, 2])
    with_column(folder / EPISODES, name, values)
    error = refused(folder)
    assert "file-000.parquet" in error.path and "episodes" in error.path


def test_a_table_without_episodes(tmp_path: Path) -> None:
    folder = write(tmp_path / "demos", [1])
    pq.write_table(pq.read_table(folder / EPISODES).slice(0, 0), folder / EPISODES)
    (folder / INFO).write_text((folder / INFO).read_text().replace('"total_episodes": 1', '"total_episodes": 0'))
    assert "0 episodes" in refused(folder).cause


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("episode_index", 10**12),
        ("episode_index", -1),
        ("episode_index", "0"),
        ("episode_index", None),
        ("frame_index", "0"),
        ("action", "x"),
        ("observation.state", None),
        ("observation.images.wrist", 7),
        ("observation.images.wrist", b"\x89PNG"),
    ],
)
def test_absurd_frames(tmp_path: Path, name: str, value: object) -> None:
    folder = write(tmp_path / "demos", [1])
    with_column(folder / DATA, name, [value] * 5)
    assert "data" in refused(folder).path


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", ["action", "observation.state"])
def test_numbers_that_are_not_finite_are_named(tmp_path: Path, key: str, value: float) -> None:
    folder = write(tmp_path / "demos", [1, 2])  # 5 and 6 frames
    rows = pq.read_table(folder / DATA)[key].to_pylist()
    rows[7][1] = value
    rows[9][0] = value
    size = len(rows[0])
    table = pq.read_table(folder / DATA)
    column = pa.array(rows, pa.list_(pa.float32(), size))
    pq.write_table(table.set_column(table.schema.get_field_index(key), key, column), folder / DATA)
    assert f"{key}[1] of frame 2 of episode 1 is {value}, and 1 more" in refused(folder).cause


def image(kind: str, size: tuple[int, int] = (6, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["TIFF", "GIF", "BMP", "PPM", "WEBP"])
def test_only_png_and_jpeg_are_opened(tmp_path: Path, kind: str) -> None:
    """Each further format is code that somebody else's bytes reach."""
    folder = write(tmp_path / "demos", [1])
    for opened, data in ((True, image("JPEG")), (False, image(kind))):
        cells = [{"bytes": data, "path": None}] * 5
        with_column(folder / DATA, "observation.images.wrist", cells)
        if opened:
            (folder / "checksums.json").unlink()
            DemoDataset.load(folder)
        else:
            assert "frame 0 of episode 0 is no image" in refused(folder).cause


def test_a_bomb_of_pixels_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = image("PNG", (3000, 3000))
    monkeypatch.setattr(PngImageFile, "load", lambda self: pytest.fail("its pixels are decoded"))
    with pytest.raises(ValueError, match="3000 x 3000 pixels"):
        decode_image(data, 48)
    monkeypatch.undo()
    bomb = image("PNG", (20_000, 10))
    with pytest.raises(ValueError, match="10 x 20000 pixels"):
        picture_size(bomb)


def test_a_data_set_without_a_state_comes_back(tmp_path: Path) -> None:
    features = replace(FEATURES, num_proprio=0)
    with DemoWriter(tmp_path / "demos", features) as writer:
        writer.add(replace(recorded(1), proprio=np.zeros((5, 0), np.float32)))
        dataset = DemoDataset.load(writer.finish())
    assert dataset.features == features and dataset.proprio.shape == (5, 0)
    assert np.array_equal(dataset.actions, recorded(1).actions)
    assert layout.STATE not in json.loads((tmp_path / "demos" / layout.INFO).read_text())["features"]
