"""The class is the published model: every tensor name and shape, and where its parts are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rlrun.policies.openvla_oft.config import OFFICIAL_TIMM_IDS, OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT

NUM_PARAMETERS = 7_541_237_184


@pytest.fixture(scope="module")
def official() -> OpenVLAOFT:
    config = OpenVLAOFTConfig(
        text_config={"vocab_size": 32064, "pad_token_id": 32000, "torch_dtype": "bfloat16"},
        timm_model_ids=OFFICIAL_TIMM_IDS,
    )
    with torch.device("meta"):
        return OpenVLAOFT(config)


def test_names_and_shapes(official: OpenVLAOFT, repository: Path) -> None:
    published = json.loads((repository / "tests/data/openvla_oft_state_dict.json").read_text())
    ours = {name: list(tensor.shape) for name, tensor in official.state_dict().items()}
    assert len(published) == 982
    assert ours == published
    assert sum(parameter.numel() for parameter in official.parameters()) == NUM_PARAMETERS


def test_numbers_that_config_json_leaves_to_code(official: OpenVLAOFT) -> None:
    assert official.language_model.config.rms_norm_eps == 1e-6  # not Llama-2's 1e-5
    assert official.language_model.config.rope_parameters["rope_theta"] == 10_000
    assert official.vision_backbone.featurizer.norm.eps == 1e-6
    assert official.config.action_tokens_end == 32_000
    assert official.config.num_patches == 256


def test_dead_weights(official: OpenVLAOFT) -> None:
    frozen = official.frozen_names()
    assert frozen == {name for name, parameter in official.named_parameters() if not parameter.requires_grad}
    parts = {".".join(name.split(".")[1 : 4 if ".blocks." in name else 3]) for name in frozen}
    assert parts == {
        "featurizer.blocks.23",
        "featurizer.norm",
        "fused_featurizer.blocks.26",
        "fused_featurizer.norm",
        "fused_featurizer.attn_pool",
    }


def test_forward_shapes_of_both_robots() -> None:
    """LIBERO: 1 image, 56 tokens; BEHAVIOR: 3 images, 184 tokens, with value head and proprioception."""
    text = {"vocab_size": 32064, "pad_token_id": 32000}
    for images, actions, proprio in ((1, 7, 0), (3, 23, 32)):
        config = OpenVLAOFTConfig(
            text_config=text,
            num_actions=actions,
            num_images=images,
            num_proprio=proprio,
            value_hidden_sizes=[512, 128],
        )
        with torch.device("meta"):
            model = OpenVLAOFT(config)
            output = model(
                torch.zeros(2, 50, dtype=torch.long),
                None,
                torch.zeros(2, 6 * images, 224, 224),
                torch.zeros(2, proprio) if proprio else None,
            )
        assert output.action_logits.shape == (2, 8 * actions, 256)
        assert output.value.shape == (2,)


def test_unknown_towers_are_refused() -> None:
    with pytest.raises(ValueError, match="vit_giant"):
        OpenVLAOFTConfig(timm_model_ids=["vit_giant", "vit_so400m_patch14_siglip_224"])
