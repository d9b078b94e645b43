"""Folders of pi0 and pi0.5: those of LeRobot and openpi open in rlrun, and what rlrun writes has LeRobot's files.

tests/data/published/pi0_folder and pi05_folder were saved by LeRobot 0.4.4 (scripts/oracles/pi.py), whose weights are
drawn; acted.npz has what LeRobot's processors and network make of the oracle's pictures, state and instruction.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

from rlrun.config.loader import load
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.counting import count
from rlrun.policies.flow.folder import FlowParts
from rlrun.policies.flow.lerobot_config import MODES, Statistics
from rlrun.policies.folders import parameters_in
from rlrun.policies.opening import open_unfilled
from rlrun.policies.pi.config import EMBEDDINGS, HEADS, PALIGEMMA_FOLDER, PiConfig
from rlrun.policies.pi.folder import (
    OPENPI_PADDING,
    pixels,
    read_folder,
    write_folder,
)
from rlrun.policies.pi.network import PiNetwork
from rlrun.policies.pi.policy import PiProcessor, prompt_with_state
from rlrun.policies.pi.spec import SPEC, PiSettings, StateInPrompt, pi_config
from rlrun.policies.weight_files import WeightFiles
from rlrun.system.errors import RunError
from scripts.oracles.openvla_oft import drawn
from scripts.oracles.pi import KINDS, configured, statistics, tokenizer
from tests.golden.pi import SPACES, acted, inputs, processor_of
from tests.numerics import assert_norm_close, norm_error

DATA = Path(__file__).parents[1] / "data" / "published"
TOLERANCE = 1e-5
PROCESSORS = ("policy_preprocessor", "policy_postprocessor")
ASKED = PiSettings()


def small(kind: str) -> Any:
    return configured(kind, vocab_size=tokenizer().get_vocab_size())


def weights(kind: str) -> Iterator[tuple[str, Tensor]]:
    with torch.device("meta"):
        network = PiNetwork(small(kind))
    return ((name, drawn(name, tuple(tensor.shape))) for name, tensor in network.state_dict().items())


def own_statistics(kind: str) -> Statistics:
    mode = MODES["MEAN_STD" if kind == "pi0" else "QUANTILES"]
    found = {name: mode(*(values[part] for part in mode.parts)) for name, values in statistics(kind).items()}
    return Statistics(found["observation.state"], found["action"])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def written(kind: str, tmp_path: Path) -> Path:
    """A folder that rlrun wrote."""
    write_folder(
        tmp_path / "written", small(kind), tokenizer(), own_statistics(kind), weights(kind), StateInPrompt.padded
    )
    return tmp_path / "written"


@pytest.fixture
def saved(kind: str, written: Path, tmp_path: Path) -> Path:
    """A folder as LeRobot saved it; sizes and tokenizer of the small network, which no hub has, are rlrun's."""
    folder = tmp_path / "saved"
    shutil.copytree(DATA / f"{kind}_folder", folder)
    shutil.copytree(written / PALIGEMMA_FOLDER, folder / PALIGEMMA_FOLDER)
    shutil.copy(written / "model.safetensors", folder)
    return folder


@pytest.fixture
def of_openpi(kind: str, written: Path, tmp_path: Path) -> Path:
    """A folder as openpi converts its checkpoints."""
    folder = tmp_path / "openpi"
    shutil.copytree(written / PALIGEMMA_FOLDER, folder / PALIGEMMA_FOLDER)
    described = {"action_dim": 32, "action_horizon": 5, "precision": "float32"}
    described |= {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}
    (folder / "config.json").write_text(json.dumps(described))
    stored = load_tensors(written / "model.safetensors")
    del stored[EMBEDDINGS]  # safetensors keeps one name of tied tensors
    save_file({name.removeprefix("model."): tensor for name, tensor in stored.items()}, folder / "model.safetensors")
    longer = {
        name: {part: [*map(float, x), 0.0] for part, x in statistics(kind)[feature].items()}
        for name, feature in (("state", "observation.state"), ("actions", "action"))
    }
    (folder / "assets" / "robot").mkdir(parents=True)
    (folder / "assets" / "robot" / "norm_stats.json").write_text(json.dumps({"norm_stats": longer}))
    return folder


def opened(folder: Path, settings: PiSettings = ASKED, spaces: PlannedSpaces = SPACES) -> FlowParts[PiConfig]:
    return read_folder(folder, WeightFiles(folder), settings, spaces)


def theirs(kind: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{kind}_folder" / "acted.npz") as stored:
        return dict(stored)


def test_inputs_are_theirs(kind: str, saved: Path) -> None:
    pictures, shown, tokens, masks, _ = inputs(processor_of(opened(saved)))
    expected = theirs(kind)
    assert_norm_close(pictures, expected["pixels"], TOLERANCE)
    assert shown.all()
    length = tokens.shape[1]
    assert np.array_equal(tokens.numpy(), expected["tokens"][:, :length])
    assert np.array_equal(masks.numpy(), expected["token_masks"][:, :length])
    assert not expected["token_masks"][:, length:].any()


def test_actions_are_theirs(kind: str, saved: Path) -> None:
    assert_norm_close(acted(saved), theirs(kind)["actions"], TOLERANCE)


def test_our_folder_acts_like_theirs(written: Path, saved: Path) -> None:
    assert np.array_equal(acted(written), acted(saved))


def test_statistics_change_the_actions(kind: str, written: Path, saved: Path) -> None:
    write_folder(written, small(kind), tokenizer(), Statistics(), weights(kind), StateInPrompt.padded)
    assert norm_error(acted(written), acted(saved)) > 0.01


def test_an_openpi_folder_acts_alike(kind: str, saved: Path, of_openpi: Path) -> None:
    """Its scales have an epsilon of 1e-6, and its pictures black beside them; the state is as in the other folder."""
    ours, other = opened(of_openpi), opened(saved)
    assert ours.processor["cleans_prompt"]
    assert not other.processor["cleans_prompt"]
    assert ours.config.type == kind
    assert ours.config.cameras == ["observation.images.camera1", "observation.images.camera2"]
    assert_norm_close(acted(of_openpi), acted(saved), TOLERANCE)


def test_processors_are_written_as_theirs(kind: str, written: Path) -> None:
    for name in PROCESSORS:
        ours, expected = (
            json.loads((folder / f"{name}.json").read_text()) for folder in (written, DATA / f"{kind}_folder")
        )
        assert ours == expected
        (state,) = (DATA / f"{kind}_folder").glob(f"{name}_step_*.safetensors")
        for key, values in load_file(state).items():
            assert np.array_equal(load_file(written / state.name)[key], values)


def test_the_configuration_is_written_as_theirs(kind: str, written: Path) -> None:
    """Fields that rlrun leaves out get LeRobot's defaults."""
    ours, expected = (json.loads((folder / "config.json").read_text()) for folder in (written, DATA / f"{kind}_folder"))
    assert ours == {name: expected[name] for name in ours}


def test_all_tensors_of_their_class_are_written(kind: str, written: Path) -> None:
    found = set(load_file(written / "model.safetensors"))
    names = json.loads((DATA / f"{kind}_state_dict.json").read_text())
    layer = r"layers."
    assert {name for name in names if layer not in name} == {name for name in found if layer not in name}
    assert set(HEADS) <= found


SEEN = ("policy.use_proprio=true", "env.embedded.cameras=[zed_link,left_realsense_link]")


def test_the_plan_leaves_out_what_the_network_does_not_have(kind: str, written: Path, of_openpi: Path) -> None:
    """Files have heads over words; one of them holds the embeddings, under their own name too or alone."""
    own = sum(tensor.numel() for _, tensor in weights(kind))
    critic = 160 * 128 + 128 + 128 * 64 + 64 + 64  # of value_hidden_sizes, over the expert's width and the VLM's
    for folder in (written, of_openpi):
        run = load([f"policy={kind}", f"policy.path={folder}", *SEEN])
        assert parameters_in(folder) > 1.01 * own
        if folder is written:  # the other one is of a robot with fewer joints
            assert count(run).num_parameters == pytest.approx(own + critic, rel=1e-3)
        assert pi_config(run, SPACES).type == kind
    (of_openpi / "model.safetensors").unlink()  # as where only a plan is made
    assert pi_config(load([f"policy={kind}", f"policy.path={of_openpi}"]), SPACES).type == kind


def test_folders_are_recognized(saved: Path, of_openpi: Path) -> None:
    for folder in (saved, of_openpi):
        assert SPEC.recognizes(json.loads((folder / "config.json").read_text()))
    assert not SPEC.recognizes({"type": "smolvla"})
    assert not SPEC.recognizes({})


def test_statistics_of_openpi_may_be_elsewhere(of_openpi: Path, tmp_path: Path) -> None:
    found = of_openpi / "assets" / "robot" / "norm_stats.json"
    expected = acted(of_openpi)
    found.rename(tmp_path / "norm_stats.json")
    with pytest.raises(RunError, match=r"has 0 files norm_stats\.json") as refused:
        opened(of_openpi)
    assert "policy.pi.norm_stats_path" in str(refused.value)
    given = PiSettings(norm_stats_path=str(tmp_path / "norm_stats.json"))
    action = opened(of_openpi, given).statistics.action
    assert action is not None
    assert np.isfinite(action.denormalize(expected)).all()


def test_statistics_of_fewer_dimensions_are_refused(of_openpi: Path) -> None:
    with pytest.raises(RunError, match=r"of 9 dimensions of actions"):
        opened(of_openpi, spaces=PlannedSpaces(2, SPACES.num_proprio, 9))


@pytest.mark.parametrize("kind", ["pi05"], indirect=True)
def test_the_state_in_the_prompt(written: Path) -> None:
    stored = opened(written)
    state = np.array([-1.2, -1.0, 0.0, 0.5, 1.0, 2.0, 0.1], np.float32)
    numbers = "-1 0 128 192 255 255 140"

    def prompt(shown: StateInPrompt) -> str:
        own = PiProcessor(stored.config, stored.tokenizer, stored.statistics, 7, shown, OPENPI_PADDING)
        return own.prompt(" turn_on\nit ", state)

    assert prompt(StateInPrompt.real) == f"Task: turn on it, State: {numbers};\nAction: "
    assert prompt(StateInPrompt.padded) == f"Task: turn on it, State: {numbers}{' 128' * 25};\nAction: "
    assert prompt(StateInPrompt.none) == "turn on it\n"


def test_pictures_keep_their_aspect() -> None:
    images = torch.full((1, 1, 10, 20, 3), 255, dtype=torch.uint8)
    shown = pixels(images, 20, OPENPI_PADDING)[0, 0, 0]
    assert (shown[5:15] == 1).all()
    assert (shown[:5] == -1).all()
    assert (shown[15:] == -1).all()
    assert torch.equal(pixels(images[:, :, :, :10], 10, -3.0), torch.ones(1, 1, 3, 10, 10))


def test_pi0_takes_the_instruction_as_lerobot_or_as_openpi(tmp_path: Path) -> None:
    write_folder(tmp_path, small("pi0"), tokenizer(), own_statistics("pi0"), weights("pi0"), StateInPrompt.padded)
    stored = opened(tmp_path)

    def prompt(text: str, cleans: bool) -> str:
        own = PiProcessor(
            stored.config,
            stored.tokenizer,
            stored.statistics,
            7,
            StateInPrompt.real,
            OPENPI_PADDING,
            cleans_prompt=cleans,
        )
        return own.prompt(text, np.zeros(7, np.float32))

    assert prompt(" turn_on\nit ", cleans=False) == " turn_on\nit \n"
    assert prompt("turn on it\n", cleans=False) == "turn on it\n"
    assert prompt(" turn_on\nit ", cleans=True) == "turn on it\n"


def test_prompts_begin_with_bos(written: Path) -> None:
    """As PaliGemma's do, also where tokenizer.json leaves that to its library."""
    words = Tokenizer(WordLevel({"<unk>": 0, "a": 1, "<bos>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    words.save(str(written / PALIGEMMA_FOLDER / "tokenizer.json"))
    assert opened(written).tokenizer.encode("a").ids == [2, 1]


def damaged(folder: Path, change: dict[str, Any]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "act"}, "another policy"),
        ({"paligemma_variant": "gemma_300m"}, "gemma_300m with"),
        ({"use_relative_actions": True}, "use_relative_actions"),
        ({"image_resolution": [448, 448]}, "448"),
        ({"chunk_size": 3}, "n_action_steps=5 exceeds"),
        ({"normalization_mapping": {"STATE": "MIN_MAX"}}, "STATE by MIN_MAX"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(saved: Path, change: dict, message: str) -> None:
    damaged(saved, change)
    with pytest.raises(RunError, match=message):
        opened(saved)


def test_tensors_of_the_other_kind_are_refused(kind: str, saved: Path) -> None:
    damaged(saved, {"type": {"pi0": "pi05", "pi05": "pi0"}[kind]})
    run = load([f"policy={kind}", "policy.use_proprio=true", "policy.num_action_chunks=5"])
    with pytest.raises(RunError, match=r"\d+ missing: .*norm.*; \d+ unknown"):
        open_unfilled(saved, run)


def test_a_long_state_has_its_bins() -> None:
    numbers = prompt_with_state("x", np.linspace(-1, 1, 257)[:-1]).split("State: ")[1].split(";")[0].split()
    assert numbers == [str(i) for i in range(256)]
