"""OpenVLA-OFT against the official modelling code, from picture and prompt to actions, with small random weights.

The outputs in tests/data/published were made by scripts/oracles/openvla_oft.py. Not covered: what SimpleVLA-RL does to
pictures by TensorFlow (JPEG, Lanczos, crop), and Llama's tokenizer, so that prompts are given as tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rlrun.policies.openvla_oft.config import OFFICIAL_TOWERS, OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT, PolicyOutput
from rlrun.policies.openvla_oft.processor import ImageStatistics, Processor
from scripts.oracles.openvla_oft import NUM_ACTIONS, NUM_CHUNKS, PROMPTS, SIDE, VOCABULARY, WIDTH, drawn, statistics

DATA = Path(__file__).parents[1] / "data" / "published"
TOLERANCE = 1e-5


def configured(has_stop_token: bool, value_hidden_sizes: list[int] | None) -> OpenVLAOFTConfig:
    towers = [shape | {"hidden_size": 48, "num_layers": 3, "num_heads": 4} for shape in OFFICIAL_TOWERS]
    return OpenVLAOFTConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
        },
        vision_towers=[towers[0] | {"mlp_size": 192}, towers[1] | {"mlp_size": 96}],
        image_sizes=[SIDE, SIDE],
        norm_stats=statistics(),
        unnorm_key="libero",
        num_actions=NUM_ACTIONS,
        num_action_chunks=NUM_CHUNKS,
        max_prompt_length=max(map(len, PROMPTS)),
        has_stop_token=has_stop_token,
        value_hidden_sizes=value_hidden_sizes,
    )


def tokenized(processor: Processor) -> tuple[str, ...]:
    """Give the processor the prompts as tokens, for their instructions; return the instructions."""
    names = tuple(f"prompt {i}" for i in range(len(PROMPTS)))
    length = processor.config.max_prompt_length
    for name, ids in zip(names, PROMPTS, strict=True):
        processor._prompts[name] = np.array([ids[0], *[-1] * (length - len(ids)), *ids[1:]], np.int64)
    return names


def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{name}.npz") as stored:
        return dict(stored)


def error(found: torch.Tensor, expected: np.ndarray) -> float:
    reference = torch.from_numpy(expected).double()
    return float((found.double() - reference).norm() / reference.norm())


def computed(
    name: str, has_stop_token: bool, value_hidden_sizes: list[int] | None, center_crop: bool = False
) -> tuple[PolicyOutput, np.ndarray, np.ndarray]:
    """Return rlrun's output, tokens and actions for the stored pictures and prompts."""
    config = configured(has_stop_token, value_hidden_sizes)
    config.center_crop = center_crop
    model = OpenVLAOFT(config).eval()
    processor = Processor(config, Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>")), ImageStatistics())
    inputs = processor(golden(name)["images"][:, None], tokenized(processor))
    with torch.no_grad():
        for weight, tensor in model.state_dict().items():
            tensor.copy_(drawn(weight, tuple(tensor.shape)))
        output = model(inputs.input_ids, inputs.attention_mask, inputs.pixel_values)
    tokens = output.action_logits.argmax(-1).numpy()
    return output, tokens, processor.decode_actions(tokens)


@pytest.mark.parametrize(
    ("name", "has_stop_token", "value_hidden_sizes"), [("simplevla_rl", True, None), ("rlinf", False, [512, 128])]
)
def test_outputs_are_the_official_ones(name: str, has_stop_token: bool, value_hidden_sizes: list[int] | None) -> None:
    expected = golden(name)
    output, tokens, actions = computed(name, has_stop_token, value_hidden_sizes)
    assert error(output.action_logits, expected["logits"]) < TOLERANCE
    if value_hidden_sizes:
        assert error(output.value, expected["values"]) < TOLERANCE
    assert np.array_equal(tokens, expected["tokens"] - (VOCABULARY - 64 - 256))
    assert error(torch.from_numpy(actions), expected["actions"]) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("simplevla_rl", {"has_stop_token": False}),
        ("rlinf", {"has_stop_token": True}),
        ("rlinf", {"has_stop_token": False, "center_crop": True}),
    ],
)
def test_another_setting_gives_other_logits(name: str, wrong: dict[str, bool]) -> None:
    output, _, _ = computed(name, value_hidden_sizes=None, **wrong)
    assert error(output.action_logits, golden(name)["logits"]) > 10 * TOLERANCE
