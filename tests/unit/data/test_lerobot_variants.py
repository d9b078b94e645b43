"""Datasets as people have them are read: layouts, names, sizes, sentences, statistics, and what of them is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlrun.config.schema import DemoKeysConfig, DemosConfig
from rlrun.data.lerobot import DatasetError, DemoDataset, dataset_digest
from rlrun.data.lerobot.layout import read_names
from tests.unit.data.lerobot_sets import TASKS, TOP, WRIST, Made, drawn, encoded, lines, made, written

VERSIONS = ("v3.0", "v2.1", "v2.0")


def opened(folder: Path, made: Made, version: str = "v3.0", **demos: Any) -> DemoDataset:
    return DemoDataset.open(written(folder / "set", made, version), DemosConfig(**demos))


def seen(dataset: DemoDataset, frames: list[int] | None = None) -> np.ndarray:
    """The pictures of frames, uint8 [M, N, H, W, 3]."""
    return dataset.batch(np.array(range(len(dataset)) if frames is None else frames), 1).images


def refused(folder: Path, made: Made, version: str = "v3.0", **demos: Any) -> DatasetError:
    with pytest.raises(DatasetError) as error:
        opened(folder, made, version, **demos)
    assert "record the dataset again" not in error.value.remedy
    return error.value


@pytest.mark.parametrize("version", VERSIONS)
def test_every_layout_is_read(tmp_path: Path, version: str) -> None:
    dataset = opened(tmp_path, made(), version)
    assert dataset.features.cameras == ("top",) and dataset.features.camera_sizes == ((16, 24),)
    assert dataset.features.proprio_names == ("x", "y", "z") and dataset.features.action_names == ()
    assert dataset.features.fps == 10.0 and isinstance(dataset.features.fps, float)
    assert dataset.actions[:, 0].tolist() == list(range(15)) and dataset.proprio[3].tolist() == [3, 9, 1]
    assert np.array_equal(seen(dataset)[:, 0], np.stack([drawn(i) for i in range(15)]))
    assert dataset.sentences == tuple(sorted(TASKS)) and dataset.left_out == ()
    assert dataset.batch(np.array([3, 4, 9]), 1).instructions == (TASKS[0], TASKS[1], TASKS[0])
    assert [dataset.episode_of(i) for i in (0, 4, 14)] == [0, 1, 2]
    assert dataset.batch(np.array([2]), 4).actions[0, :, 0].tolist() == [2, 3, 3, 3]


# --- names ---------------------------------------------------------------------------------------


def renamed(one: Made, names: dict[str, str]) -> Made:
    for place in (one.columns, one.pictures, one.features):
        for old, new in names.items():
            if old in place:
                place[new] = place.pop(old)
    return one


def test_usual_names_are_found(tmp_path: Path) -> None:
    names = {"observation.state": "state", "action": "actions", TOP: "image", WRIST: "observation.image"}
    dataset = opened(tmp_path, renamed(made(cameras=(TOP, WRIST)), names))
    assert dataset.features.cameras == ("image", "observation.image") and dataset.features.num_proprio == 3
    assert set(dataset.stats) == {"observation.state", "action"}


def test_other_names_are_told_and_mapped(tmp_path: Path) -> None:
    one = renamed(made(cameras=(TOP, WRIST)), {"observation.state": "joints", "action": "motors"})
    error = refused(tmp_path / "without", one)
    assert "no feature is called action or actions; it has" in error.cause and "motors (float32 [2])" in error.cause
    assert error.remedy == "name the feature that holds the actions: demos.keys.action=FEATURE"
    keys = DemoKeysConfig(state="joints", action="motors", images=[WRIST, TOP])
    dataset = opened(tmp_path / "with", one, keys=keys)
    assert dataset.features.cameras == ("wrist", "top") and dataset.proprio.shape == (15, 3)
    assert "there is no such feature; it has" in refused(tmp_path / "x", one, keys=DemoKeysConfig(action="x")).cause
    assert "demos.keys.images names y" in refused(tmp_path / "y", made(), keys=DemoKeysConfig(images=["y"])).cause


def test_cameras_are_taken_by_name_and_in_order(tmp_path: Path) -> None:
    one = made(cameras=(TOP, WRIST))
    one.pictures[WRIST] = 255 - one.pictures[TOP]
    folder = written(tmp_path / "set", one)
    dataset = DemoDataset.open(folder, DemosConfig(), cameras=("wrist", "observation.images.top"), size=(8, 8))
    assert dataset.features.cameras == ("wrist", "top") and seen(dataset).shape == (15, 2, 8, 8, 3)
    assert np.all(seen(dataset, [0])[0, 0, :, 0] == 247)
    with pytest.raises(DatasetError, match="no camera front; its cameras: top, wrist"):
        DemoDataset.open(folder, DemosConfig(), cameras=("front",))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (None, ()),
        (["a", "b"], ("a", "b")),
        ({"motors": ["a", "b"]}, ("a", "b")),
        ({"left": ["a"], "right": ["a"]}, ("left/a", "right/a")),
        ({"arms": {"left": ["a"], "right": ["b"]}}, ("a", "b")),
        ([["a"], ["b"]], ("a", "b")),
        ({"b": 1, "a": 0}, ("a", "b")),
        (["motors"], ()),
        (7, ()),
    ],
)
def test_names_in_every_form(names: Any, found: tuple[str, ...]) -> None:
    assert read_names(names, 2) == found


def test_a_set_without_state(tmp_path: Path) -> None:
    one = made()
    del one.columns["observation.state"], one.features["observation.state"]
    dataset = opened(tmp_path, one)
    assert dataset.features.num_proprio == 0 and dataset.batch(np.arange(3), 1).proprio.shape == (3, 0)
    assert dataset.norm_stats()["proprio"]["q01"] == []


# --- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ([3, 16, 24], ["channels", "height", "width"]),
        ([3, 16, 24], None),
        ([24, 16, 3], ["width", "height", "channel"]),
        ([16, 24, 3], ["height", "width", "rgb"]),
        ([4, 16, 24], None),
    ],
)
def test_shapes_in_every_order(tmp_path: Path, shape: list[int], names: Any) -> None:
    one = made()
    one.features[TOP] |= {"shape": shape, "names": names}
    dataset = opened(tmp_path, one)
    assert dataset.features.camera_sizes == ((16, 24),) and np.array_equal(seen(dataset, [5])[0, 0], drawn(5))


def test_several_sizes_are_scaled_to_the_largest(tmp_path: Path) -> None:
    one = made(cameras=(TOP, WRIST))
    one.pictures[WRIST] = np.stack([drawn(i, (32, 32)) for i in range(15)])
    dataset = opened(tmp_path, one)
    assert dataset.features.camera_sizes == ((16, 24), (32, 32)) and seen(dataset).shape == (15, 2, 32, 32, 3)
    assert np.array_equal(seen(dataset, [7])[0, 1], drawn(7, (32, 32)))


def test_depth_and_grey_are_left_out_and_said(tmp_path: Path) -> None:
    one = made(cameras=(TOP, WRIST))
    depth, grey, coloured = "observation.images.depth", "observation.images.grey", "observation.images.top_depth"
    for key, shape in ((depth, [16, 24, 1]), (grey, [16, 24]), (coloured, [16, 24, 3])):
        one.features[key] = {"dtype": "image", "shape": shape, "names": None}
        one.pictures[key] = one.pictures[TOP]
    one.features[WRIST]["info"] = {"video.is_depth_map": True}
    dataset = opened(tmp_path, one)
    assert dataset.features.cameras == ("top",) and len(dataset.left_out) == 4
    assert f"{depth} is left out: it has 1 channel, no colours." in dataset.left_out
    assert (
        "demos.keys.images names observation.images.grey: "
        in refused(tmp_path / "named", one, keys=DemoKeysConfig(images=[grey])).cause
    )


def test_a_camera_called_depth_is_left_out_unless_it_is_named(tmp_path: Path) -> None:
    key = "observation.images.depth.left"
    one = made(cameras=(TOP, key))
    assert opened(tmp_path / "a", one).features.cameras == ("top",)
    dataset = opened(tmp_path / "b", one, keys=DemoKeysConfig(images=[key]))
    assert dataset.features.cameras == ("depth.left",) and "demos.keys.images does not name it" in dataset.left_out[0]


def test_a_fourth_channel_is_dropped(tmp_path: Path) -> None:
    one = made()
    alpha = np.full((16, 24, 1), 7, np.uint8)
    one.cells[TOP] = [{"bytes": encoded(np.concatenate([drawn(i), alpha], 2)), "path": None} for i in range(15)]
    assert np.array_equal(seen(opened(tmp_path, one), [5])[0, 0], drawn(5))


@pytest.mark.parametrize("kind", ["relative", "of another machine", "text", "binary"])
def test_pictures_in_files_of_their_own(tmp_path: Path, kind: str) -> None:
    one = made()
    for i in range(15):
        file = tmp_path / f"set/images/top/{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(drawn(i), "JPEG"))
    before = "/home/somebody/data/" if kind == "of another machine" else ""
    names = [f"{before}images/top/{i}.jpg" for i in range(15)]
    one.cells[TOP] = names if kind == "text" else [{"bytes": None, "path": name} for name in names]
    if kind == "binary":
        one.cells[TOP] = [encoded(drawn(i), "JPEG") for i in range(15)]
    pictures = seen(opened(tmp_path, one), [5, 6])
    assert np.abs(pictures[:, 0].astype(int) - np.stack([drawn(5), drawn(6)])).mean() < 6


def test_no_picture_outside_of_the_dataset_is_read(tmp_path: Path) -> None:
    one = made()
    (tmp_path / "secret.png").write_bytes(encoded(drawn(0)))
    one.cells[TOP] = [{"bytes": None, "path": "../secret.png"}] * 15
    assert "there is no file ../secret.png in the dataset" in refused(tmp_path, one).cause


def test_a_damaged_picture_is_named_by_episode_and_frame(tmp_path: Path) -> None:
    one = made()
    one.cells[TOP] = [{"bytes": encoded(drawn(i)), "path": None} for i in range(15)]
    one.cells[TOP][6] = {"bytes": b"\x89PNG", "path": None}
    dataset = opened(tmp_path, one)
    with pytest.raises(DatasetError, match=f"{TOP} of frame 2 of episode 1 is no image"):
        seen(dataset, [4])  # its episode is read as a whole


# --- episodes, sentences, times ------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_episodes_with_holes(tmp_path: Path, version: str) -> None:
    one = made()
    kept = one.columns["episode_index"] != 1
    one.columns = {key: values[kept] for key, values in one.columns.items()}
    one.pictures = {key: values[kept] for key, values in one.pictures.items()}
    del one.episodes[1]
    one.lengths, one.info["total_episodes"] = (4, 6), 2
    dataset = opened(tmp_path, one, version)
    assert len(dataset) == 10 and [dataset.episode_of(i) for i in (3, 4)] == [0, 2]
    assert np.array_equal(seen(dataset, [4])[0, 0], drawn(9))


def test_a_list_of_episodes_that_is_cut_is_refused(tmp_path: Path) -> None:
    one = made()
    one.info["total_episodes"] = 4
    assert "it lists 3 episodes (0 to 2), info.json counts 4" in refused(tmp_path, one).cause


def test_sentences_are_those_of_each_frame(tmp_path: Path) -> None:
    one = made()
    one.columns["task_index"] = np.arange(15) % 2
    for row in one.episodes:
        del row["tasks"]
    dataset = opened(tmp_path, one)
    assert dataset.batch(np.array([0, 1, 2]), 1).instructions == (TASKS[0], TASKS[1], TASKS[0])


def test_sentences_of_episodes_without_a_table_of_tasks(tmp_path: Path) -> None:
    one = made()
    one.tasks = {}
    del one.columns["task_index"]
    one.episodes[2]["tasks"] = [""]
    dataset = opened(tmp_path, one)
    assert dataset.sentences == ("", TASKS[1], TASKS[0]) and dataset.sentences == tuple(sorted(dataset.sentences))
    assert dataset.left_out == ("6 of 15 frames have no sentence: they are trained with an empty one.",)


def test_a_task_without_a_sentence_is_refused(tmp_path: Path) -> None:
    one = made()
    one.columns["task_index"][7] = 9
    for row in one.episodes:
        row["tasks"] = []
    assert "task_index 9 of episode 1 stands in no table" in refused(tmp_path, one).cause


def test_sentences_with_every_line_break(tmp_path: Path) -> None:
    one = made()
    one.tasks[0] = "open\u2028the \x85 Schublade ÄÖ"
    assert one.tasks[0] in opened(tmp_path, one, "v2.1").sentences


def test_times_that_disagree_with_the_rate_are_told(tmp_path: Path) -> None:
    one = made()
    one.info["fps"] = 29.97
    dataset = opened(tmp_path, one)
    assert dataset.features.fps == 29.97
    assert "disagrees with fps 29.97 of info.json at 12 of 12 frames: the median step is 0.1 s" in dataset.left_out[0]


def test_frames_in_another_order(tmp_path: Path) -> None:
    one = made()
    order = np.random.default_rng(0).permutation(15)
    one.columns = {key: values[order] for key, values in one.columns.items()}
    one.pictures[TOP] = one.pictures[TOP][order]
    dataset = opened(tmp_path, one)
    assert dataset.actions[:, 0].tolist() == list(range(15))
    assert np.array_equal(seen(dataset)[:, 0], np.stack([drawn(i) for i in range(15)]))


# --- what is chosen ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("episodes", "taken"), [([2, 0, 2], [0, 2]), ("1:", [1, 2]), (":1", [0]), ("1:2", [1]), ("0:50", [0, 1, 2])]
)
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_episodes_are_chosen(tmp_path: Path, episodes: Any, taken: list[int], version: str) -> None:
    one = made()
    dataset = opened(tmp_path, one, version, episodes=episodes)
    assert sorted({dataset.episode_of(i) for i in range(len(dataset))}) == taken
    first = (0, 4, 9)[taken[0]]
    assert dataset.actions[0, 0] == first and np.array_equal(seen(dataset, [0])[0, 0], drawn(first))
    assert dataset.stats["action"]["min"][0] == first, "statistics are those of what is trained"
    assert bool(dataset.left_out) == (len(taken) < 3)


@pytest.mark.parametrize("episodes", [[0, 3], "7:9"])
def test_episodes_that_do_not_exist_are_refused(tmp_path: Path, episodes: Any) -> None:
    error = refused(tmp_path, made(), episodes=episodes)
    assert "demos.episodes" in error.cause and "from 0 to 2" in error.remedy


@pytest.mark.parametrize("place", ["table", "frames"])
def test_only_successful_episodes(tmp_path: Path, place: str) -> None:
    one = made()
    if place == "table":
        for row, success in zip(one.episodes, (True, False, True), strict=True):
            row["success"] = success
    else:
        one.columns["next.success"] = np.isin(np.arange(15), [3, 14])
        one.features["next.success"] = {"dtype": "bool", "shape": [1], "names": None}
    every = opened(tmp_path / "all", one)
    assert every.success.tolist() == [True, False, True] and "1 of 3 episodes did not succeed" in every.left_out[0]
    dataset = opened(tmp_path / "some", one, only_successful=True)
    assert [dataset.episode_of(i) for i in (0, 4)] == [0, 2] and len(dataset) == 10
    assert dataset.left_out == ("1 episode is left out by demos.only_successful=true.",)
    error = refused(tmp_path / "none", one, only_successful=True, episodes=[1])
    assert "none of the chosen episodes succeeded" in error.cause


def test_success_that_nobody_recorded_is_refused(tmp_path: Path) -> None:
    assert "neither meta/episodes has a column success" in refused(tmp_path, made(), only_successful=True).cause


# --- statistics, numbers, files ------------------------------------------------------------------


@pytest.mark.parametrize("stats", [None, {}, {"action": {"q99": [5.0, 5.0]}}, {"action": [1, 2]}])
def test_statistics_are_those_of_the_frames(tmp_path: Path, stats: Any) -> None:
    one = made()
    one.stats = stats
    norm = opened(tmp_path, one).norm_stats()
    assert np.allclose(norm["action"]["q99"], np.quantile(one.columns["action"], 0.99, axis=0))
    assert np.allclose(norm["proprio"]["std"], one.columns["observation.state"].std(0))
    assert norm["action"]["mean"] == [7.0, -7.0]


def test_large_numbers_go_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.data.lerobot.frames._IN_MEMORY_BYTES", 8)
    one = made()
    one.columns = {key: values[::-1] for key, values in one.columns.items()}
    dataset = opened(tmp_path, one)
    assert isinstance(dataset.actions, np.memmap) and dataset.actions[:, 0].tolist() == list(range(15))


def test_nan_is_refused_by_its_place(tmp_path: Path) -> None:
    one = made()
    one.columns["action"][6, 1] = np.nan
    error = refused(tmp_path, one)
    assert "action[1] of frame 2 of episode 1 is nan" in error.cause and "demos.episodes" in error.remedy
    assert len(opened(tmp_path / "without", one, episodes=[0, 2])) == 10


@pytest.mark.parametrize("name", ["data/chunk-000/file-000.parquet", "meta/info.json", "meta/tasks.parquet"])
def test_pointers_of_git_lfs_are_named(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "set", made())
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n")
    with pytest.raises(DatasetError, match="git lfs pull"):
        DemoDataset.load(folder)


def test_a_missing_column_is_named_with_those_there(tmp_path: Path) -> None:
    one = made()
    del one.columns["action"]
    assert "no column action; its columns: episode_index, frame_index" in refused(tmp_path, one).cause


@pytest.mark.parametrize(
    "template", ["../{episode_index}.parquet", "/etc/{episode_index}", "{chunk_index:999999d}", "{x}"]
)
def test_templates_that_lead_elsewhere_are_refused(tmp_path: Path, template: str) -> None:
    one = made()
    one.info["data_path"] = template
    assert "episode 0" in refused(tmp_path, one).cause


def test_templates_of_info_are_followed(tmp_path: Path) -> None:
    one = made()
    one.info |= {"data_path": "data/task-{episode_chunk:04d}/e_{episode_index:08d}.parquet", "chunks_size": 2}
    folder = written(tmp_path / "set", one, "v2.1")
    for i in range(3):
        file = folder / f"data/task-{i // 2:04d}/e_{i:08d}.parquet"
        file.parent.mkdir(exist_ok=True)
        (folder / f"data/chunk-000/episode_{i:06d}.parquet").rename(file)
    assert len(DemoDataset.load(folder)) == 15


def test_the_digest_tells_other_data(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", made())
    before = dataset_digest(folder)
    assert dataset_digest(written(tmp_path / "again", made())) == before
    (folder / ".git").mkdir()
    (folder / ".git/x").write_text("x")
    assert dataset_digest(folder) == before
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps(info | {"fps": 11}))
    assert dataset_digest(folder) != before
    table = pq.read_table(folder / "data/chunk-000/file-000.parquet")
    (folder / "meta/info.json").write_text(json.dumps(info))
    assert dataset_digest(folder) == before
    pq.write_table(table.slice(0, 9), folder / "data/chunk-000/file-000.parquet")
    assert dataset_digest(folder) != before


def test_lines_that_are_no_json_are_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", made(), "v2.1")
    lines(folder / "meta/episodes.jsonl", [{"episode_index": 0, "length": 4}])
    (folder / "meta/episodes.jsonl").write_text((folder / "meta/episodes.jsonl").read_text() + '{"episode')
    with pytest.raises(DatasetError, match="it is not JSON, line by line"):
        DemoDataset.load(folder)
