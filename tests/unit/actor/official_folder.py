"""A random checkpoint in the official layout: all 982 published names, with layers small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from rlrun.config.registry import fill_lora
from rlrun.config.schema import RunConfig
from rlrun.policies.openvla_oft.config import OFFICIAL_TOWERS, OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.processor import ImageStatistics, Processor
from rlrun.policies.openvla_oft.spec import OpenVLAOFTSettings
from rlrun.policies.tokenizer import word_tokenizer
from rlrun.policies.weight_files import write_weights
from tests.unit.actor.tiny_run import A, P

VOCABULARY = 512
WIDTH = 160
FILE_BYTES = 6_000_000  # several files, as the published ones are


def official_run(**actor: object) -> RunConfig:
    """What completes such a checkpoint: chunks, value head, proprioception."""
    from tests.unit.actor.tiny_run import tiny_config

    run = tiny_config(**actor)
    run.env.image_size, run.policy.value_hidden_sizes = 28, [32]
    own = OpenVLAOFTSettings(max_prompt_length=6, has_action_queries=False)
    run.policy.sections = {"openvla_oft": own}
    run.seed = 11
    fill_lora(run)
    return run


def write_official(folder: Path, width: int = WIDTH, num_layers: int | None = None) -> dict[str, torch.Tensor]:
    """Write config.json, *.safetensors with their index, statistics, tokenizer; returns the tensors (bfloat16)."""
    config = official_config(width, num_layers)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in OpenVLAOFT(config).state_dict().items()}
    generator = torch.Generator().manual_seed(2)
    tensors = {name: 0.1 * torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    folder.mkdir(exist_ok=True, parents=True)
    write_weights(folder, tensors.items(), FILE_BYTES)
    _describe(folder, config)
    return tensors


def official_config(width: int, num_layers: int | None = None) -> OpenVLAOFTConfig:
    """The published numbers of layers, unless other ones are asked for, and small ones of everything else."""
    tower = {"hidden_size": 48, "num_heads": 4, "mlp_size": 96}
    tower |= {"num_layers": num_layers} if num_layers else {}
    return OpenVLAOFTConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "pad_token_id": VOCABULARY - 64,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_attention_heads": 4,
            "num_hidden_layers": num_layers or 32,
        },
        vision_towers=[shape | tower for shape in OFFICIAL_TOWERS],
        image_sizes=[28, 28],
        bos_token_id=1,
        stop_token_id=2,
        space_token_id=3,
        pad_token_id=VOCABULARY - 64,
    )


def _describe(folder: Path, config: OpenVLAOFTConfig) -> None:
    named = {"q01": [-1.0], "q99": [1.0], "min": [-1.0], "max": [1.0], "mask": [True]}
    statistics = {
        part: {key: values * size for key, values in named.items()} for part, size in (("action", A), ("proprio", P))
    }
    (folder / "dataset_statistics.json").write_text(json.dumps({"rlrun": statistics}))
    ours = OpenVLAOFTConfig.from_dict({**config.to_dict(), "norm_stats": {"rlrun": statistics}})
    ours.unnorm_key, ours.num_actions = "rlrun", A
    Processor(ours, word_tokenizer(["push", "pull it"]), ImageStatistics()).save(folder)
    described = config.to_dict()
    added = ("num_action", "num_images", "num_proprio", "value_hidden", "has_", "max_prompt", "unnorm_key", "action_b")
    described = {key: value for key, value in described.items() if not key.startswith((*added, "center_crop"))}
    (folder / "config.json").write_text(json.dumps(described))
