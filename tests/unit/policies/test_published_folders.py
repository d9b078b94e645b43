"""What published folders hold beside the policy's own tensors: adapters alone, other value heads, old buffers."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from rlrun.placement.policy_counts import policy_counts
from rlrun.policies.folders import ADAPTER_CONFIG, ADAPTER_FILE, parameters_in
from rlrun.policies.opening import open_unfilled
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.system.errors import RunError
from tests.unit.policies.small import opened_vla, some_frames
from tests.unit.policies.test_checkpoint import CPU, WEIGHTS, a_run, folder, official  # noqa: F401


def with_extra(place: Path, extra: dict[str, torch.Tensor]) -> None:
    save_file(load_file(place / WEIGHTS) | extra, place / WEIGHTS, metadata={"format": "pt"})


def test_old_rotary_buffers_are_ignored(official: Path) -> None:  # noqa: F811
    with_extra(official, {"language_model.model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    opened_vla(official, torch.float32, CPU, a_run())


@pytest.mark.parametrize(("outputs", "is_kept"), [(1, True), (2, False)])
def test_a_value_head_of_control_steps_is_set_aside(
    outputs: int,
    is_kept: bool,
    official: Path,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """RLinf's names; one output is a chunk's value, which rlrun's critic has too."""
    head = {
        "value_head.mlp.0.weight": torch.ones(16, 32),
        "value_head.mlp.0.bias": torch.ones(16),
        "value_head.mlp.2.weight": torch.ones(outputs, 16),
    }
    with_extra(official, head)
    with caplog.at_level(logging.WARNING):
        model, _ = opened_vla(official, torch.float32, CPU, a_run())
    assert ("is set aside" in caplog.text) != is_kept
    assert torch.equal(model.value_head.layers[0].weight, head["value_head.mlp.0.weight"]) == is_kept
    assert model.value_head.layers[-1].weight.shape == (1, 16)


def adapted(official: Path, place: Path, **settings: object) -> OpenVLAOFT:  # noqa: F811
    """Write a folder with adapters alone, by peft, beside the official one; return peft's own merged model."""
    model, _ = opened_vla(official, torch.float32, CPU, a_run())
    torch.manual_seed(3)
    wrapped = get_peft_model(
        model,
        LoraConfig(r=4, lora_alpha=8, target_modules=r"(language_model|vision_backbone)\..*(q_proj|fc1)", **settings),
    )
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    wrapped.save_pretrained(place)
    described = json.loads((place / ADAPTER_CONFIG).read_text())
    (place / ADAPTER_CONFIG).write_text(json.dumps(described | {"base_model_name_or_path": "../official"}))
    for file in official.iterdir():
        if file.name != WEIGHTS:
            (place / file.name).write_bytes(file.read_bytes())
    return wrapped.merge_and_unload()


@pytest.fixture
def apart(official: Path, tmp_path: Path) -> tuple[Path, Path]:  # noqa: F811
    """Return (the official folder, an empty one beside it)."""
    files = list(official.iterdir())
    (tmp_path / "official").mkdir()
    for file in files:
        file.rename(tmp_path / "official" / file.name)
    return tmp_path / "official", tmp_path / "adapters"


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}])
def test_adapters_alone_are_merged_as_peft_does(apart: tuple[Path, Path], settings: dict) -> None:
    expected = adapted(*apart, **settings)
    assert parameters_in(apart[0]) > 10 * parameters_in(apart[1]) > 0
    run = replace(a_run(), policy=replace(a_run().policy, path=str(apart[1])))
    assert policy_counts(run).num_parameters == pytest.approx(parameters_in(apart[0]), rel=0.01)
    loaded, processor = opened_vla(apart[1], torch.float32, CPU, a_run())
    frames = some_frames(2)
    inputs = processor(frames.images, frames.instructions, frames.proprio)
    with torch.no_grad():
        outputs = [
            model(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio).action_logits
            for model in (opened_vla(apart[0], torch.float32, CPU, a_run())[0], expected, loaded)
        ]
    assert (outputs[0] - outputs[1]).norm() > 0.01 * outputs[1].norm()
    assert (outputs[2] - outputs[1]).norm() < 1e-5 * outputs[1].norm()


def test_a_shard_of_an_adapted_weight(apart: tuple[Path, Path]) -> None:
    adapted(*apart)
    weights = open_unfilled(apart[1], a_run())[1]
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    whole = weights.read(name)[3:7]
    assert (weights.read(name, 3, 7) - whole).norm() < 1e-6 * whole.norm()


def test_adapters_without_their_policy_are_refused(apart: tuple[Path, Path]) -> None:
    adapted(*apart)
    file = apart[1] / ADAPTER_CONFIG
    described = json.loads(file.read_text())
    file.write_text(json.dumps(described | {"base_model_name_or_path": "openvla/openvla-7b"}))
    with pytest.raises(RunError, match=r"(?s)has only adapters.*Download openvla/openvla-7b"):
        open_unfilled(apart[1], a_run())
    file.write_text(json.dumps(described | {"use_dora": True}))
    with pytest.raises(RunError, match="use_dora"):
        open_unfilled(apart[1], a_run())
    assert (apart[1] / ADAPTER_FILE).is_file()
