"""A data set is judged when it is opened: times, ends of episodes, sizes and durations; declared changes are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlrun.config.schema import PICTURE_CHANGES, DemoKeysConfig, DemosConfig
from rlrun.data.lerobot import DatasetError, DemoDataset
from rlrun.data.lerobot.changes import PICTURES
from rlrun.data.lerobot.reader import dataset_info
from rlrun.data.thumbnails import ORIENTATIONS, SWAP
from rlrun.system.errors import RunError
from tests.unit.data.lerobot_sets import FPS, TOP, Made, drawn, encoded, made, write_video, written

FEATURE = {"dtype": "float32", "shape": [1], "names": None}


def opened(folder: Path, made: Made, version: str = "v3.0", **demos: Any) -> DemoDataset:
    return DemoDataset.open(written(folder / "set", made, version), DemosConfig(**demos))


def levels(dataset: DemoDataset) -> list[int]:
    """The numbers of the pictures of all frames, by their brightness."""
    images = dataset.batch(np.arange(len(dataset)), 1).images
    return [round((float(picture[0, 4, 4, 0]) - 8) / 15) for picture in images]


# --- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "told"),
    [
        (lambda step, number: number / FPS, "does not begin at 0 in episodes 1, 2"),
        (lambda step, number: 1.7e9 + number / FPS, "does not begin at 0 in episodes 0, 1, 2"),
        (lambda step, number: 0 * step, "does not move in episodes 0, 1, 2: frame_index and fps give the times"),
        (lambda step, number: 1000 * step / FPS, "counts milliseconds: it is divided by 1000"),
        (lambda step, number: 1e9 * step / FPS, "counts nanoseconds"),
        (lambda step, number: np.where(number < 4, 0.0, step / FPS), "does not move in episode 0:"),
    ],
)
def test_times_of_another_begin_or_unit_show_each_frames_own_picture(tmp_path: Path, times: Any, told: str) -> None:
    one = made(cameras=(), videos=(TOP,))
    one.columns["timestamp"] = np.asarray(times(one.columns["frame_index"], np.arange(15)), np.float64)
    dataset = opened(tmp_path, one)
    assert levels(dataset) == list(range(15))
    assert len(dataset.left_out) == 1 and told in dataset.left_out[0]


def test_times_of_the_recording_find_frames_where_the_table_names_one_begin(tmp_path: Path) -> None:
    one = made(cameras=(), videos=(TOP,))
    one.columns["timestamp"] = np.arange(15) / FPS
    folder = written(tmp_path / "set", one)
    table = folder / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(table).to_pylist()
    pq.write_table(pa.Table.from_pylist([row | {f"videos/{TOP}/from_timestamp": 0.0} for row in rows]), table)
    assert levels(DemoDataset.load(folder)) == list(range(15))


def test_an_episode_whose_first_frames_were_dropped_keeps_its_times(tmp_path: Path) -> None:
    one = made()
    kept = np.arange(15) >= 2
    one.columns = {key: values[kept] for key, values in one.columns.items()}
    one.pictures = {key: values[kept] for key, values in one.pictures.items()}
    one.lengths = (2, 5, 6)
    one.episodes[0]["length"] = 2
    assert opened(tmp_path, one).left_out == ()


def test_repeated_numbers_of_frames_are_told(tmp_path: Path) -> None:
    one = made()
    one.columns["frame_index"][3] = 2
    assert "1 frames have the frame_index of the frame before" in opened(tmp_path, one).left_out[0]


# --- ends ----------------------------------------------------------------------------------------


def with_ends(lengths: tuple[int, ...], success: bool | None, truncated: bool = False, done: bool = True) -> Made:
    one = made(lengths)
    last = np.zeros(sum(lengths), bool)
    last[np.cumsum(lengths) - 1] = True
    one.columns |= {"next.reward": np.zeros(len(last), np.float32), "next.done": last & done}
    one.features |= {"next.reward": FEATURE, "next.done": FEATURE}
    if success is not None:
        one.columns["next.success"] = last & success
        one.features["next.success"] = FEATURE
    if truncated:
        one.columns["next.truncated"] = last
        one.features["next.truncated"] = FEATURE
    return one


@pytest.mark.parametrize(
    ("one", "demos", "num_terminal", "told"),
    [
        (with_ends((5, 5, 5), False, truncated=True), {}, 0, None),
        (with_ends((5, 5, 5), False), {}, 0, "3 of 3 episodes end with next.done, without success and all after 5"),
        (with_ends((5, 5, 5), None), {}, 0, "they count as cut off by a time limit"),
        (with_ends((5, 5, 5), True), {}, 3, None),
        (with_ends((4, 5, 6), None), {}, 3, None),
        (with_ends((4, 5, 6), False), {}, 3, "3 of 3 episodes end with next.done and without success"),
        (with_ends((4, 6, 6), False), {}, 1, "2 of 3 episodes end with next.done, without success and all after 6"),
        (with_ends((5, 5, 5), False), {"time_limit": 0}, 3, None),
        (with_ends((4, 5, 6), False), {"time_limit": 5}, 1, None),
        (with_ends((4, 5, 6), None), {"time_limit": 5}, 1, None),
        (with_ends((4, 5, 6), True), {"time_limit": 5}, 3, None),
        (with_ends((5, 5, 5), False, done=False), {}, 0, None),
    ],
)
def test_an_end_by_a_time_limit_is_never_silently_terminal(
    tmp_path: Path, one: Made, demos: dict, num_terminal: int, told: str | None
) -> None:
    dataset = opened(tmp_path, one, **demos)
    assert dataset.done.sum() == num_terminal
    about_ends = [sentence for sentence in dataset.left_out if "next.done" in sentence]
    assert (told is None and not about_ends) or any(told in sentence for sentence in about_ends)


# --- rates ---------------------------------------------------------------------------------------


def test_a_rate_that_the_user_knows_better_is_compared(tmp_path: Path) -> None:
    folder = str(written(tmp_path / "set", made()))
    own = dataset_info(DemosConfig(), folder).fps
    assert dataset_info(DemosConfig(fps=2 * own), folder).fps == 2 * own


# --- sizes and durations -------------------------------------------------------------------------


def test_pictures_of_another_size_are_scaled_and_told(tmp_path: Path) -> None:
    one = made()
    one.cells[TOP] = [{"bytes": encoded(drawn(i, (16, 24) if i < 9 else (32, 48))), "path": None} for i in range(15)]
    folder = written(tmp_path / "set", one)
    assert levels(DemoDataset.load(folder)) == list(range(15))
    told = dataset_info(DemosConfig(), str(folder)).left_out
    assert any(f"6 of 15 pictures of {TOP} have another size than the first, which is 16 x 24" in text for text in told)


@pytest.mark.parametrize(("cell", "cause"), [(b"", "its cell is empty"), (b"GIF", "its 3 bytes are neither PNG")])
def test_a_picture_that_is_none_is_refused_before_anything_is_trained(tmp_path: Path, cell: bytes, cause: str) -> None:
    one = made()
    one.cells[TOP] = [{"bytes": encoded(drawn(i)), "path": None} for i in range(15)]
    one.cells[TOP][6] = {"bytes": cell, "path": None}
    with pytest.raises(RunError) as error:
        dataset_info(DemosConfig(), str(written(tmp_path / "set", one)))
    assert f"{TOP} of frame 2 of episode 1 is no image ({cause}" in str(error.value)
    assert "0x" not in str(error.value)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_a_video_without_its_last_frames_is_refused_before_anything_is_trained(tmp_path: Path, version: str) -> None:
    folder = written(tmp_path / "set", made(cameras=(), videos=(TOP,)), version)
    file = max(folder.glob("videos/**/*.mp4"))
    number = 15 if version == "v3.0" else 6
    write_video(file, [drawn(i) for i in range(number - 2)])
    with pytest.raises(RunError, match="and the video lasts from 0 to"):
        dataset_info(DemosConfig(), str(folder))


# --- vectors of several features, declared changes -------------------------------------------------


def in_parts() -> Made:
    one = made()
    action = one.columns.pop("action")
    del one.features["action"]
    one.columns |= {"action.x": action[:, :1], "action.y": action[:, 1]}
    one.features |= {"action.x": FEATURE, "action.y": FEATURE}
    return one


def test_several_features_make_one_vector_in_the_named_order(tmp_path: Path) -> None:
    remedy = "demos.keys.action=[action.x,action.y]"
    with pytest.raises(DatasetError) as error:
        opened(tmp_path / "a", in_parts())
    assert remedy in error.value.remedy
    dataset = opened(tmp_path / "b", in_parts(), keys=DemoKeysConfig(action=["action.y", "action.x"]))
    assert dataset.features.num_actions == 2 and dataset.actions[3].tolist() == [-3, 3]


def test_a_vector_may_have_axes_of_length_one(tmp_path: Path) -> None:
    one = made()
    one.features["action"]["shape"] = [1, 2]
    assert opened(tmp_path, one).actions[3].tolist() == [3, -3]


def test_declared_numbers_are_changed_before_statistics(tmp_path: Path) -> None:
    keys = DemoKeysConfig(scale={"action/0": 2, "state/z": -1, "reward": 0.5}, offset={"action/0": -1})
    one = with_ends((4, 5, 6), True)
    one.columns["next.reward"][:] = 4
    dataset = opened(tmp_path, one, keys=keys)
    assert dataset.actions[3].tolist() == [5, -3] and dataset.proprio[3].tolist() == [3, 9, -1]
    assert dataset.rewards[3] == 2 and dataset.stats["action"]["min"] == [-1, -14]
    assert "action/0 is multiplied by 2 - 1 (demos.keys)." in dataset.left_out


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ({"scale": {"action/2": 2}}, "the dataset has 2 such numbers, from 0"),
        ({"scale": {"state/w": 2}}, "their names: x, y, z"),
        ({"pictures": {"wrist": ["mirror"]}}, "its cameras are top"),
    ],
)
def test_changes_of_what_is_not_there_are_refused(tmp_path: Path, keys: dict, cause: str) -> None:
    with pytest.raises(DatasetError, match=cause):
        opened(tmp_path, made(), keys=DemoKeysConfig(**keys))


@pytest.mark.parametrize("change", PICTURE_CHANGES)
def test_declared_pictures_are_changed(tmp_path: Path, change: str) -> None:
    one = made()
    one.stats = {TOP: {"mean": [[[0.1]], [[0.2]], [[0.3]]], "count": [15]}}
    plain = opened(tmp_path / "a", one).batch(np.array([2]), 1).images[0, 0]
    dataset = opened(tmp_path / "b", one, keys=DemoKeysConfig(pictures={"top": [change]}))
    changed = dataset.batch(np.array([2]), 1).images[0, 0]
    assert dataset.features.camera_sizes == (changed.shape[:2],)
    assert np.array_equal(changed, PICTURES[change](plain))
    assert dataset.stats[TOP]["mean"][0] == ([[0.3]] if change == "swap_red_blue" else [[0.1]])
    taken = DemoDataset.open(tmp_path / "b/set", DemosConfig(keys=DemoKeysConfig(pictures={"other": [change]})), [])
    assert taken.features.cameras == (), "changes of cameras that are not taken"


def test_the_changes_are_those_of_the_configuration_and_make_eight_orientations() -> None:
    assert tuple(PICTURES) == PICTURE_CHANGES and SWAP in PICTURES
    corner = np.arange(4 * 4 * 3).reshape(1, 4, 4, 3)
    seen = set()
    for steps in ORIENTATIONS:
        picture = corner
        for step in steps:
            picture = PICTURES[step](picture)
        seen.add(picture.tobytes())
    assert len(seen) == 8
