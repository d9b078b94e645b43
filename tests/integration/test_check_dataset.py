"""The worlds' own demonstrations get no warning, and `rlrun check-dataset` and the doctor print the same table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlrun
from rlrun.check_dataset import main as check
from rlrun.data.lerobot import DemoFeatures, DemoWriter, Episode
from rlrun.doctor.__main__ import main as doctor
from rlrun.envs.make import make_env
from rlrun.observability.run_files import DATASET
from rlrun.sft import main as sft
from rlrun.system.errors import ExitStatus
from rlrun.workers.demo_recording import demonstrate

pytestmark = pytest.mark.integration
DEFAULT = ("run=single_process",)
WORLDS = {
    "quick": DEFAULT,
    "trash": (*DEFAULT, "env=picking_up_trash"),
    "car": ("run=mountain_car_rlpd", "cluster.kind=local"),
}
NUM_EPISODES = 4
LATER_SEED = "demos.seed=1000700"  # other starts than those of the recording


def recorded(
    folder: Path, overrides: tuple[str, ...], change: Callable[[Episode], dict[str, Any]] = lambda episode: {}
) -> Path:
    """Record the expert of a world."""
    config = rlrun.load_config(list(overrides))
    env = make_env(config.env, NUM_EPISODES)
    spaces = env.spaces
    sizes = ((config.env.image_size,) * 2,) * spaces.num_images
    rate = float(spaces.control_hz or config.env.action_hz)
    names = {"action_names": spaces.action_names, "has_rewards": True}
    features = DemoFeatures(spaces.cameras, sizes, spaces.num_proprio, spaces.num_actions, rate, **names)
    with DemoWriter(folder, features) as writer:
        for episode in demonstrate(env, NUM_EPISODES, config.demos.seed, 1, config.demos.noise):
            writer.add(dataclasses.replace(episode, **change(episode)))
        writer.finish()
    env.close()
    return folder


def status(program: Callable[..., None], *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        program(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.parametrize("world", ["quick", "car", pytest.param("trash", marks=pytest.mark.long)])
def test_a_worlds_own_demonstrations_get_no_warning(tmp_path: Path, world: str, capsys: Any) -> None:
    folder = recorded(tmp_path / "own", WORLDS[world])
    assert status(check, str(folder), *WORLDS[world], LATER_SEED) == ExitStatus.ok
    said = capsys.readouterr().out
    assert "the data set can be trained on in this world; 0 warnings" in said and "warning:" not in said
    assert "verdict" in said and "action 0" in said and "state 1" in said


def test_turned_pictures_are_told_by_the_command_the_doctor_and_before_imitation(tmp_path: Path, capsys: Any) -> None:
    folder = recorded(tmp_path / "turned", DEFAULT, lambda e: {"images": np.rot90(e.images, 2, (2, 3))})
    line = "demos.keys.pictures={zed_link: [rotate_180]} changes them so"
    assert status(check, str(folder), *DEFAULT) == ExitStatus.ok
    said = capsys.readouterr().out
    assert line in said and "fits best turned by 180 degrees" in said
    row = next(text for text in said.splitlines() if text.startswith("camera zed_link"))
    assert status(doctor, *DEFAULT, f"demos.path={folder}") in (ExitStatus.ok, ExitStatus.doctor)
    assert row in capsys.readouterr().out
    keys = (f"demos.path={folder}", "sft.num_steps=1", f"cache_dir={tmp_path}/cache", f"output_dir={tmp_path}/run")
    assert status(sft, *DEFAULT, *keys, "demos.keys.pictures={zed_link: [rotate_180]}") == ExitStatus.ok
    kept = (tmp_path / "run" / DATASET).read_text()
    assert "warning" not in kept and "pictures of zed_link: rotate_180 (demos.keys)." in kept
    assert kept.count("\nstate ") == 62 and "pictures:" in (tmp_path / "run/config.yaml").read_text()


def test_black_pictures_are_refused(tmp_path: Path, capsys: Any) -> None:
    folder = recorded(tmp_path / "black", DEFAULT, lambda e: {"images": 0 * e.images})
    assert status(check, str(folder), *DEFAULT) == ExitStatus.bad_input
    assert "refused: The data set does not fit the world: pictures." in capsys.readouterr().out
    assert status(doctor, *DEFAULT, f"demos.path={folder}", "format=json") == ExitStatus.doctor
    assert "shows one colour in all frames" in capsys.readouterr().out
    keys = (f"demos.path={folder}", f"cache_dir={tmp_path}/cache", f"output_dir={tmp_path}/run")
    assert status(sft, *DEFAULT, *keys) == ExitStatus.bad_input
    assert "refused: " in (tmp_path / "run" / DATASET).read_text()


def test_a_folder_must_be_named(capsys: Any) -> None:
    assert status(check, *DEFAULT) == ExitStatus.bad_config
    assert "rlrun check-dataset FOLDER" in capsys.readouterr().err
