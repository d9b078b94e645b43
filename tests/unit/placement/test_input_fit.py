"""What a run brings is compared with its world before anything runs, as far as both are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.checks import OF_INPUTS
from rlrun.config.loader import load
from rlrun.data.lerobot import DemoFeatures, DemoWriter, Episode
from rlrun.placement.verdict import planned_fit

RUN = ["run=single_process"]


def dataset(folder: Path, fps: float = 30.0, cameras: tuple[str, ...] = ("zed_link",)) -> Path:
    features = DemoFeatures(cameras, ((8, 8),) * len(cameras), 61, 8, fps)
    with DemoWriter(folder, features) as writer:
        images = np.random.default_rng(0).integers(0, 256, (4, len(cameras), 8, 8, 3), np.uint8)
        numbers = np.linspace(0, 0.1, 4 * 69, dtype=np.float32).reshape(4, 69)
        sentence = "turn on the radio"
        writer.add(Episode(images, numbers[:, :61], numbers[:, 61:], sentence, success=True, seed=0))
        writer.finish()
    return folder


def test_a_data_set_of_the_world_fits(tmp_path: Path):
    found = planned_fit(load([*RUN, f"demos.path={dataset(tmp_path / 'set')}"]))
    assert found is not None and not found.refusals and found.cameras == ("zed_link",)
    told = [line.split()[0] for line in found.lines()[1:]]
    assert told[0] == "cameras" and {"camera", "rate", "sentences"} <= set(told), told


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"fps": 10.0}, "10 frames a second"), ({"cameras": ("left", "right")}, "zed_link has no partner by name")],
)
def test_one_of_another_world_does_not(tmp_path: Path, changes: dict, said: str):
    found = planned_fit(load([*RUN, f"demos.path={dataset(tmp_path / 'set', **changes)}"]))
    assert found is not None and said in str(found.refusals[0].cause)


def test_what_cannot_be_read_is_a_refusal(tmp_path: Path):
    (tmp_path / "meta").mkdir()
    found = planned_fit(load([*RUN, f"demos.path={tmp_path}"]))
    assert found is not None and "info.json" in found.refusals[0].message


def test_what_is_not_on_this_machine_is_not_compared(tmp_path: Path):
    for key in ("demos.path", "policy.path"):
        assert planned_fit(load([*RUN, f"{key}={tmp_path}/elsewhere"], skipped=OF_INPUTS)) is None
    assert planned_fit(load(RUN)) is None


def test_cameras_of_a_policy_folder_are_matched_and_renamed(tmp_path: Path):
    pictures = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 8, 8]} for name in ("camera1", "camera2")}
    (tmp_path / "config.json").write_text(json.dumps({"type": "smolvla", "input_features": pictures}))
    run = [*RUN, "policy=smolvla", f"policy.path={tmp_path}", "env.embedded.cameras=[zed_link,left_realsense_link]"]
    by_place = planned_fit(load(run))
    assert by_place is not None and not by_place.refusals
    assert by_place.notes == [
        "cameras, world → policy: zed_link → observation.images.camera1 (by place), "
        "left_realsense_link → observation.images.camera2 (by place)"
    ]
    rename = {"observation.images.zed_link": "observation.images.camera2"}
    steps = [{"registry_name": "rename_observations_processor", "config": {"rename_map": rename}}]
    (tmp_path / "policy_preprocessor.json").write_text(json.dumps({"steps": steps}))
    renamed = planned_fit(load(run))
    assert renamed is not None and renamed.notes[0].endswith("zed_link → observation.images.zed_link")
    too_few = planned_fit(load([*run, "env.embedded.cameras=[zed_link]"]))
    assert too_few is not None and too_few.refusals[0].key == "policy.cameras"
