"""Odd folders of policies: each is refused on opening, alike to act and to train, with file, entry and remedy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.policies.counting import count
from rlrun.policies.flow.lerobot_config import ACTION, PREPROCESSOR, STATE, LeRobotConfig, Standardization, Statistics
from rlrun.policies.flow.lerobot_processors import NORMALIZE, POSTPROCESSOR, RENAME, read_statistics, write_processors
from rlrun.policies.folders import spec_of
from rlrun.policies.opening import open_policy, open_to_shard
from rlrun.system.errors import RunError
from tests.unit.policies.small import A, P
from tests.unit.policies.test_checkpoint import a_run, folder, official  # noqa: F401

Change = Callable[[dict[str, Any]], object]


def refusals(place: Path, run: RunConfig) -> str:
    """Return what is told, which must be the same to act and to train."""
    told = []
    for opening in (lambda: open_policy(place, torch.float32, "cpu", run), lambda: open_to_shard(place, run)):
        with pytest.raises(RunError) as refused:
            opening()
        told.append(str(refused.value))
    assert told[0] == told[1]
    assert str(place) in told[0] and "remedy" in told[0]
    return told[0]


def edit(file: Path, change: Change) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def of_action(change: Change) -> Change:
    return lambda stats: change(stats["rlrun"]["action"])


@pytest.mark.parametrize(
    ("change", "entry", "remedy"),
    [
        (of_action(lambda s: (s.pop("q01"), s.pop("q99"))), "action.q01 is missing", "action_bounds=minmax"),
        (of_action(lambda s: s.update(mask=[True] * (A - 1))), f"action.mask has {A - 1} values", "one value per"),
        (of_action(lambda s: s.update(mask="yes")), "action.mask has a str", "one value per"),
        (of_action(lambda s: s.update(q99=[1.0, math.nan, 1.0])), r"action.q99\[1\] is nan", "hold NaN"),
        (of_action(lambda s: s.update(q99=[1.0])), "action.q01 has 3 numbers, q99 1", "dataset_statistics.json"),
        (of_action(lambda s: s.update(q01=["a"] * A)), "action.q01 is no list of numbers", "dataset_statistics.json"),
        (of_action(lambda s: s.update(q01=[9.0] * A)), r"action.q01\[0\] is 9, more than", "dataset_statistics.json"),
        (lambda s: s["rlrun"].pop("action"), "action is missing", "dataset_statistics.json"),
        (lambda s: s["rlrun"].pop("proprio"), "proprio is missing", "Set policy.use_proprio=false"),
        (lambda s: s.clear(), "no normalisation statistics named 'rlrun'", "unnorm_key to one of"),
    ],
)
def test_statistics_of_an_official_checkpoint(
    official: Path,  # noqa: F811
    change: Change,
    entry: str,
    remedy: str,
) -> None:
    edit(official / "dataset_statistics.json", change)
    told = refusals(official, a_run())
    assert re.search(entry, told), told
    assert remedy in told


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        (lambda s: s.pop("proprio"), "its weights read proprioception"),
        (lambda s: s["proprio"].update(q01=[0.0] * 2, q99=[1.0] * 2), f"has 2 values, and the weights read {P}"),
    ],
)
def test_statistics_of_another_robot(folder: Path, change: Change, entry: str) -> None:  # noqa: F811
    edit(folder / "config.json", lambda config: change(config["norm_stats"]["rlrun"]))
    assert entry in refusals(folder, a_run())


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        (lambda d: (d.pop("means"), d.update(image_processor_type="SiglipImageProcessor")), "SiglipImageProcessor"),
        (lambda d: d.update(stds=[[0.5, math.nan, 0.5]] * 2), "three finite numbers"),
        (lambda d: d.update(stds=[[0.5, 0.5, 0.5], [0.5, 0.0, 0.5]]), "stds hold 0"),
        (lambda d: d.update(image_resize_strategy="letterbox"), "letterbox"),
        (lambda d: d.update(input_sizes=[[3, 384, 384]] * 2), "384"),
    ],
)
def test_another_image_processor(folder: Path, change: Change, entry: str) -> None:  # noqa: F811
    edit(folder / "preprocessor_config.json", change)
    told = refusals(folder, a_run())
    assert entry in told and "preprocessor_config.json" in told


@pytest.mark.parametrize("name", ["tokenizer.json", "preprocessor_config.json", "model.safetensors", "config.json"])
@pytest.mark.parametrize("kept", [0, 40])
def test_files_that_were_cut(folder: Path, name: str, kept: int) -> None:  # noqa: F811
    (folder / name).write_bytes((folder / name).read_bytes()[:kept])
    told = refusals(folder, a_run())
    assert name in told and "copy" in told


def test_the_tokenizer_of_another_model(folder: Path) -> None:  # noqa: F811
    def shifted(described: dict[str, Any]) -> None:
        words = described["model"]["vocab"]
        words.update({word: number + 5000 for word, number in words.items() if word not in ("<unk>", "<s>", "</s>")})

    edit(folder / "tokenizer.json", shifted)
    assert "has embeddings of" in refusals(folder, a_run())


# --- kinds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described", "type_told"),
    [
        ({"type": "act"}, "LeRobot's type 'act'"),
        ({"type": "diffusion", "n_obs_steps": 2}, "LeRobot's type 'diffusion'"),
        ({"model_type": "llama"}, "transformers' model_type 'llama'"),
        ({"type": ["act"]}, "neither `type` nor `model_type`"),
        ({}, "neither `type` nor `model_type`"),
    ],
)
def test_a_folder_of_no_installed_kind_names_its_type(tmp_path: Path, described: dict, type_told: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(described))
    run = load(["run=single_process", "policy=smolvla", f"policy.path={tmp_path}"])
    told = refusals(tmp_path, run)
    assert type_told in told and "openvla_oft, pi, small, smolvla" in told
    with pytest.raises(RunError, match="no installed kind"):  # the planner comes first
        count(run)


def test_another_installed_kind_is_named(tmp_path: Path) -> None:
    """openpi's config.json has no type at all."""
    described = {"action_horizon": 10, "action_dim": 32, "paligemma_variant": "gemma_2b"}
    (tmp_path / "config.json").write_text(json.dumps(described))
    run = load(["run=single_process", "policy=smolvla", f"policy.path={tmp_path}"])
    assert "Set policy.kind=pi" in refusals(tmp_path, run)


def test_the_folder_around_a_policy(tmp_path: Path) -> None:
    inner = tmp_path / "pretrained_model"
    inner.mkdir()
    (inner / "config.json").write_text("{}")
    with pytest.raises(RunError, match=f"Give {inner}"):
        spec_of(tmp_path, None)


# --- statistics and steps of LeRobot's folders --------------------------------------------------

FEATURES = {
    "input_features": {STATE: {"type": "STATE", "shape": [2]}},
    "output_features": {ACTION: {"type": "ACTION", "shape": [3]}},
}
CONFIG = LeRobotConfig(**FEATURES)


@pytest.fixture
def processors(tmp_path: Path) -> Path:
    ones = {size: np.ones(size, np.float32) for size in (2, 3)}
    statistics = Statistics(*(Standardization(ones[size], ones[size]) for size in (2, 3)))
    write_processors(tmp_path, CONFIG, statistics, [RENAME, NORMALIZE])
    return tmp_path


def scaling_file(place: Path, name: str) -> Path:
    steps = json.loads((place / f"{name}.json").read_text())["steps"]
    return place / next(step["state_file"] for step in steps if "state_file" in step)


def test_they_are_read(processors: Path) -> None:
    read = read_statistics(processors, CONFIG, weights=None)  # type: ignore[arg-type]
    assert isinstance(read.action, Standardization) and len(read.action.std) == 3


@pytest.mark.parametrize(
    ("name", "values", "entry"),
    [
        ("action.std", [1.0, math.nan, 1.0], "action.std[1] is nan"),
        ("action.mean", [math.inf, 1.0, 1.0], "action.mean[0] is inf"),
        ("action.mean", [1.0] * 7, "action.mean is float32 [7]; config.json describes 3"),
        ("observation.state.std", [1.0] * 9, "config.json describes 2"),
        ("action.mean", None, "action.mean is missing"),
    ],
)
def test_statistics_that_cannot_be_the_policy_s(processors: Path, name: str, values: list | None, entry: str) -> None:
    for processor in (PREPROCESSOR, POSTPROCESSOR):
        file = scaling_file(processors, processor)
        state = load_file(file)
        state.pop(name)
        save_file(state if values is None else state | {name: np.array(values, np.float32)}, file)
    with pytest.raises(RunError) as refused:
        read_statistics(processors, CONFIG, weights=None)  # type: ignore[arg-type]
    assert entry in str(refused.value) and scaling_file(processors, PREPROCESSOR).name in str(refused.value)


def test_statistics_of_another_normalization(processors: Path) -> None:
    config = LeRobotConfig(**FEATURES, normalization_mapping={"STATE": "MEAN_STD", "ACTION": "QUANTILES"})
    for name in (PREPROCESSOR, POSTPROCESSOR):
        edit(processors / f"{name}.json", lambda d: [step.get("config", {}).pop("norm_map", 0) for step in d["steps"]])
    with pytest.raises(RunError, match=r"takes action.q01 and action.q99; it has action.mean, action.std"):
        read_statistics(processors, config, weights=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        (lambda d: d["steps"].append({"registry_name": "crop_the_wrist"}), "the step 'crop_the_wrist'"),
        (lambda d: d["steps"].append({"class": "my.Step"}), "the step 'my.Step'"),
        (lambda d: d["steps"].append({"config": {}}), "the step None"),
        (lambda d: d.update(steps=None), "no list of steps"),
        (lambda d: d["steps"][1]["config"]["norm_map"].update(ACTION="QUANTILES"), "config.json says MEAN_STD"),
    ],
)
def test_steps_that_rlrun_does_not_do(processors: Path, change: Change, entry: str) -> None:
    edit(processors / f"{PREPROCESSOR}.json", change)
    with pytest.raises(RunError) as refused:
        read_statistics(processors, CONFIG, weights=None)  # type: ignore[arg-type]
    assert entry in str(refused.value)


def test_actions_scaled_otherwise_afterwards(processors: Path) -> None:
    file = scaling_file(processors, POSTPROCESSOR)
    save_file(load_file(file) | {"action.std": np.full(3, 2.0, np.float32)}, file)
    with pytest.raises(RunError, match=r"Its action.std is not that of policy_preprocessor"):
        read_statistics(processors, CONFIG, weights=None)  # type: ignore[arg-type]
