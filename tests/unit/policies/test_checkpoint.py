"""Policy folders: exact round trip, official checkpoints completed, bad folders refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.policy import save_policy
from rlrun.policies.tokenizer import prompt
from rlrun.system.errors import ExitStatus, RunError
from tests.unit.policies.small import INSTRUCTIONS, SIZE, opened_vla, small_config, small_policy, some_frames

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


def a_run(**changes: object) -> RunConfig:
    env = EnvConfig(image_size=SIZE, sections={"embedded": EmbeddedConfig(cameras=["camera_0"])})
    return RunConfig(env=env, policy=small_config(**changes), seed=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_policy(tmp_path, *small_policy())
    return tmp_path


def test_round_trip_is_exact(folder: Path) -> None:
    model, processor = small_policy()
    loaded, loaded_processor = opened_vla(folder, torch.float32, CPU, a_run())
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert not loaded.training
    frames = some_frames(3)
    outputs = []
    for m, p in ((model, processor), (loaded, loaded_processor)):
        inputs = p(frames.images, frames.instructions, frames.proprio)
        outputs.append(m(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio))
    assert torch.equal(outputs[0].action_logits, outputs[1].action_logits)
    assert torch.equal(outputs[0].value, outputs[1].value)
    assert loaded_processor.image_statistics == processor.image_statistics
    assert loaded.config.norm_stats == model.config.norm_stats


def test_dead_weights_stay_frozen_after_loading(folder: Path) -> None:
    loaded, _ = opened_vla(folder, torch.float32, CPU)
    frozen = {name for name, parameter in loaded.named_parameters() if not parameter.requires_grad}
    assert frozen == loaded.frozen_names() != set()


def test_the_folder_is_a_transformers_checkpoint(folder: Path) -> None:
    """Auto classes open it without code of its own; only safetensors hold weights."""
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["OpenVLAForActionPrediction"]
    assert isinstance(AutoModel.from_pretrained(folder), OpenVLAOFT)
    _, processor = small_policy()
    ids = AutoTokenizer.from_pretrained(folder, local_files_only=True)(prompt(INSTRUCTIONS[0])).input_ids
    assert ids == processor.tokenizer.encode(prompt(INSTRUCTIONS[0])).ids
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}


def test_gathered_tensors_can_be_saved_in_place_of_the_model(tmp_path: Path) -> None:
    model, processor = small_policy()
    doubled = {name: 2 * tensor for name, tensor in model.state_dict().items()}
    save_policy(tmp_path, model, processor, doubled.items())
    loaded, _ = opened_vla(tmp_path, torch.float32, CPU)
    assert all(torch.equal(tensor, doubled[name]) for name, tensor in loaded.state_dict().items())


def test_bfloat16(folder: Path) -> None:
    loaded, _ = opened_vla(folder, torch.bfloat16, CPU)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}


def test_a_critic_gets_a_value_head_where_the_folder_has_none(tmp_path: Path) -> None:
    save_policy(tmp_path, *small_policy(value_hidden_sizes=[]))
    run = a_run()
    assert (opened_vla(tmp_path, torch.float32, CPU, run)[0].value_head.layers[0].weight != 0).all()
    run.algorithm.name = "grpo"
    assert opened_vla(tmp_path, torch.float32, CPU, run)[0].value_head is None


# --- official checkpoints -----------------------------------------------------------------


OURS = ("num_action", "num_images", "num_proprio", "value_hidden", "has_", "max_prompt", "unnorm_key", "action_bounds")


@pytest.fixture
def official(folder: Path) -> Path:
    """The folder without anything that published checkpoints lack."""
    described = json.loads((folder / "config.json").read_text())
    described = {key: value for key, value in described.items() if not key.startswith((*OURS, "center_crop"))}
    statistics = described.pop("norm_stats")
    described["norm_stats"] = {"elsewhere": statistics["rlrun"]}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "dataset_statistics.json").write_text(json.dumps({"rlrun": statistics["rlrun"]}))
    added = ("value_head.", "proprio_projector.", "action_queries.")
    tensors = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if not name.startswith(added)}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def test_an_official_checkpoint_is_completed_by_the_run(official: Path) -> None:
    run = a_run(max_prompt_length=20)
    first, processor = opened_vla(official, torch.float32, CPU, run)
    again, _ = opened_vla(official, torch.float32, CPU, run)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in first.state_dict().items())
    assert first.action_queries.weight.count_nonzero() == 0  # it was trained with zeros
    assert (first.value_head.layers[0].weight != 0).all()
    assert processor.config.max_prompt_length == 20
    original = small_policy()[0].state_dict()
    assert torch.equal(first.state_dict()["projector.fc1.weight"], original["projector.fc1.weight"])
    save_policy(official, first, processor)
    opened_vla(official, torch.float32, CPU)  # complete now


def test_an_official_checkpoint_alone_is_refused(official: Path) -> None:
    with pytest.raises(RunError, match="official checkpoint"):
        opened_vla(official, torch.float32, CPU)


def test_an_unknown_unnorm_key_lists_the_known_ones(official: Path) -> None:
    with pytest.raises(RunError, match=r"(?s)'libero'.*\['elsewhere', 'rlrun'\]"):
        opened_vla(official, torch.float32, CPU, a_run(unnorm_key="libero"))


# --- bad folders --------------------------------------------------------------------------


def refusal(folder: Path, run: RunConfig | None = None) -> str:
    with pytest.raises(RunError) as caught:
        opened_vla(folder, torch.float32, CPU, run)
    assert caught.value.exit_status is ExitStatus.bad_input
    assert caught.value.remedy
    return str(caught.value)


def test_a_missing_folder(tmp_path: Path) -> None:
    assert "config.json is missing" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "preprocessor_config.json"])
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    told = refusal(folder)
    assert name in told and ("It is missing." in told or f"lacks {name}" in told)


@pytest.mark.parametrize("text", ['{"hidden', "", "[1]", "\0\0"])
@pytest.mark.parametrize("name", ["config.json", "dataset_statistics.json", "model.safetensors.index.json"])
def test_a_description_that_is_cut(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    told = refusal(folder)
    assert f"{folder / name} cannot be read" in told and "copy it again" in told


def test_missing_unknown_and_reshaped_tensors(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["stray.weight"] = tensors.pop("projector.fc3.bias")
    tensors["projector.fc1.bias"] = torch.zeros(5)
    del tensors["value_head.layers.0.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    text = refusal(folder)
    assert "2 missing: projector.fc3.bias, value_head.layers.0.weight" in text
    assert "1 unknown: stray.weight" in text
    assert "1 of other shapes: projector.fc1.bias (5,) (expected (128,))" in text


def test_a_policy_for_another_run(folder: Path) -> None:
    text = refusal(folder, a_run(num_action_chunks=4))
    assert "policy.num_action_chunks" in text
    assert "made with 2" in text
