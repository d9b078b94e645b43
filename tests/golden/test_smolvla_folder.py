"""Folders of SmolVLA: what LeRobot saved opens in rlrun, and what rlrun writes has LeRobot's files to the letter.

tests/data/published/smolvla_folder was saved by LeRobot 0.4.4 (scripts/oracles/smolvla.py), whose weights are drawn.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

from rlrun.config.loader import load
from rlrun.policies.flow.folder import FlowParts
from rlrun.policies.flow.lerobot_config import Quantiles, Standardization, Statistics
from rlrun.policies.opening import open_unfilled
from rlrun.policies.smolvla.config import SmolVLAConfig, VLMSizes
from rlrun.policies.smolvla.folder import read_folder, write_folder
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.tokenizer import word_tokenizer
from rlrun.policies.weight_files import WeightFiles, write_weights
from rlrun.system.errors import RunError
from scripts.oracles.openvla_oft import drawn
from scripts.oracles.smolvla import CAMERAS, INSTRUCTION, NUM_ACTIONS, NUM_STATES, configured, statistics
from tests.golden.smolvla import acted
from tests.numerics import assert_norm_close, norm_error

SAVED = Path(__file__).parents[1] / "data" / "published" / "smolvla_folder"
PROCESSORS = ("policy_preprocessor", "policy_postprocessor")


def weights() -> Iterator[tuple[str, Tensor]]:
    with torch.device("meta"):
        network = SmolVLANetwork(configured("cross"))
    return ((name, drawn(name, tuple(tensor.shape))) for name, tensor in network.state_dict().items())


def own_statistics() -> Statistics:
    found = {name: Standardization(stats["mean"], stats["std"]) for name, stats in statistics().items()}
    return Statistics(found["observation.state"], found["action"])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder as LeRobot saved it."""
    folder = tmp_path / "saved"
    shutil.copytree(SAVED, folder)
    write_weights(folder, weights())
    return folder


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder that rlrun wrote of the same policy."""
    folder = tmp_path / "written"
    write_folder(folder, configured("cross"), word_tokenizer([INSTRUCTION]), own_statistics(), weights())
    return folder


def opened(folder: Path, tokenizer_path: Path | None = None) -> FlowParts[SmolVLAConfig]:
    return read_folder(folder, WeightFiles(folder), tokenizer_path)


RUN = ["policy=smolvla", "policy.use_proprio=true", "policy.num_action_chunks=2"]


def assert_is_the_policy(stored: FlowParts[SmolVLAConfig]) -> None:
    assert stored.config == configured("cross")
    assert stored.config.cameras == list(CAMERAS)
    assert (stored.config.num_proprio, stored.config.num_actions) == (NUM_STATES, NUM_ACTIONS)
    for found, expected in ((stored.statistics.state, "observation.state"), (stored.statistics.action, "action")):
        assert isinstance(found, Standardization)
        assert np.array_equal(found.mean, statistics()[expected]["mean"])
        assert np.array_equal(found.std, statistics()[expected]["std"])


def test_their_folder_opens(saved: Path) -> None:
    assert_is_the_policy(opened(saved))


def test_our_folder_opens_and_acts_like_theirs(saved: Path, written: Path) -> None:
    assert_is_the_policy(opened(written))
    assert np.array_equal(acted(written), acted(saved))


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_are_written_as_theirs(written: Path, name: str) -> None:
    ours, theirs = (json.loads((folder / f"{name}.json").read_text()) for folder in (written, SAVED))
    assert ours == theirs
    (state,) = SAVED.glob(f"{name}_step_*.safetensors")
    for key, values in load_file(state).items():
        assert np.array_equal(load_file(written / state.name)[key], values)


def test_the_configuration_is_written_as_theirs(written: Path) -> None:
    """Fields that rlrun leaves out get LeRobot's defaults."""
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (written, SAVED))
    assert ours.pop("type") == "smolvla"
    assert ours == {name: theirs[name] for name in ours}
    assert json.loads((written / "vlm/config.json").read_text()) == json.loads((SAVED / "vlm/config.json").read_text())


def test_statistics_change_the_actions(saved: Path, written: Path) -> None:
    write_folder(written, configured("cross"), word_tokenizer([INSTRUCTION]), Statistics(), weights())
    assert json.loads((written / "config.json").read_text())["normalization_mapping"] == {
        "VISUAL": "IDENTITY",
        "STATE": "IDENTITY",
        "ACTION": "IDENTITY",
    }
    assert opened(written).statistics == Statistics()
    assert norm_error(acted(written), acted(saved)) > 0.01


@pytest.mark.parametrize("variant", ["", "so100_", "so100-red_"])
def test_statistics_among_the_weights(saved: Path, variant: str) -> None:
    """As LeRobot kept them before 0.4."""
    for file in saved.glob("policy_*"):
        file.unlink()
    names = {"observation.state": "normalize_inputs", "action": "unnormalize_outputs"}
    buffers = {
        f"{names[feature]}.{variant}buffer_{feature.replace('.', '_')}.{kind}": torch.from_numpy(values)
        for feature, stats in statistics().items()
        for kind, values in stats.items()
    }
    write_weights(saved, [*weights(), *buffers.items()])
    assert_is_the_policy(opened(saved))


def test_a_base_model_has_no_statistics(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    for file in saved.glob("policy_*"):
        file.unlink()
    assert opened(saved).statistics == Statistics()
    assert "no statistics of action" in caplog.text


def test_the_tokenizer_may_be_elsewhere(saved: Path, tmp_path: Path) -> None:
    (saved / "vlm/tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(RunError, match=r"no tokenizer\.json") as refused:
        opened(saved)
    assert str(saved / "vlm") in str(refused.value)
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        assert opened(saved, place).tokenizer.token_to_id("radio") is not None


def test_sizes_of_the_published_vlm_are_known(saved: Path) -> None:
    """LeRobot's folders do not contain them. The weights here are of other sizes, and are refused as such."""
    (saved / "vlm/tokenizer.json").rename(saved / "tokenizer.json")
    shutil.rmtree(saved / "vlm")
    changed = json.loads((saved / "config.json").read_text())
    changed |= {"vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "resize_imgs_with_padding": [512, 512]}
    (saved / "config.json").write_text(json.dumps(changed))
    with pytest.raises(RunError, match=r"of other shapes: .*expected \(.*960"):
        open_unfilled(saved, load(RUN))


def damaged(folder: Path, what: str) -> None:
    file, change = {
        "variant": ("config.json", {"adapt_to_pi_aloha": True}),
        "other policy": ("config.json", {"type": "act"}),
        "normalization": ("config.json", {"normalization_mapping": {"STATE": "MIN_MAX", "ACTION": "MEAN_STD"}}),
        "vlm": ("config.json", {"vlm_model_name": "a/b"}),
        "layers": ("config.json", {"num_vlm_layers": 5}),
    }[what]
    if what == "vlm":
        (folder / "vlm/tokenizer.json").rename(folder / "tokenizer.json")
        shutil.rmtree(folder / "vlm")
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | change))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("variant", "ALOHA"),
        ("other policy", "another policy than smolvla"),
        ("normalization", "STATE by MIN_MAX"),
        ("vlm", "sizes rlrun does not know"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(saved: Path, what: str, message: str) -> None:
    damaged(saved, what)
    with pytest.raises(RunError, match=message):
        opened(saved)


def test_tensors_that_are_missing_are_named(saved: Path) -> None:
    damaged(saved, "layers")
    with pytest.raises(RunError, match=r"missing: .*layers\.4\."):
        open_unfilled(saved, load(RUN))


@pytest.mark.parametrize(
    ("kind", "expected"), [(Standardization, [[1.0, 0.0], [-2.0, 2.0]]), (Quantiles, [[-3.0, -1.0], [3.0, 1.4]])]
)
def test_normalization_is_its_own_inverse(kind: type[Standardization | Quantiles], expected: list) -> None:
    scale = kind(np.array([1.0, -2.0], np.float32), np.array([0.5, 3.0], np.float32))
    x = np.array([[1.5, -2.0], [0.0, 4.0]], np.float32)
    assert_norm_close(scale.normalize(x), np.array(expected), 1e-6)
    assert_norm_close(scale.denormalize(scale.normalize(x)), x, 1e-6)


def test_an_empty_range_of_quantiles_is_no_division_by_zero() -> None:
    scale = Quantiles(np.ones(1, np.float32), np.ones(1, np.float32))
    assert float(scale.normalize(np.ones(1, np.float32))[0]) == -1.0


def test_sizes_survive_their_format() -> None:
    for config in (configured("cross"), SmolVLAConfig()):
        sizes = json.loads(json.dumps(config.vlm.as_transformers()))
        assert VLMSizes.from_transformers(sizes) == config.vlm
        written = json.loads(json.dumps(config.as_lerobot()))
        assert SmolVLAConfig.from_lerobot(written, config.vlm) == replace(config)
