"""Opens exported folders in LeRobot's own classes and acts: run by LeRobot's interpreter, which has no rlrun.

`PYTHON tests/golden/lerobot_acts.py OBSERVED.npz ACTED.npz FOLDER …` writes, by the name of each folder, the chunk in
simulator units, and the first action of `select_action`. OBSERVED.npz has LeRobot's inputs for all folders, a
`sentence`, and `is_exact`: whether patches of pictures get whole positions in place of those of transformers below 5.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

SETTINGS = ("schedule", "max_weight", "horizon", "delay")  # of real-time chunking
# PyPI's torchvision finds none of its operators beside a CPU build of torch; its import asks for this one.
OPERATORS = torch.library.Library("torchvision", "DEF")
OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def with_whole_positions() -> None:
    """Make the vision tower of SmolVLM number the patches of whole pictures from 0 on, in whole numbers."""
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

    def forward(self: Any, pixel_values: torch.Tensor, patch_attention_mask: torch.Tensor) -> torch.Tensor:
        assert patch_attention_mask.all()
        patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return patches + self.position_embedding(torch.arange(patches.shape[1], device=patches.device))

    SmolVLMVisionEmbeddings.forward = forward


def with_sizes(kind: str, sizes: dict[str, Any]) -> None:
    """Make LeRobot's pi0 or pi0.5, whose sizes are fixed, as small as a folder's `sizes`, by rlrun's names."""
    module = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    paligemma, gemma = module.PaliGemmaForConditionalGeneration, module.GemmaForCausalLM

    def small_paligemma(config: Any) -> Any:
        config.text_config.vocab_size = sizes["vocab_size"]
        for name, value in (sizes["vision"] | {"projection_dim": sizes["language"]["width"]}).items():
            setattr(config.vision_config, name, value)
        return paligemma(config=config)

    def small_gemma(config: Any) -> Any:
        config.vocab_size = sizes["vocab_size"]
        return gemma(config=config)

    variants = {"gemma_2b": sizes["language"], "gemma_300m": sizes["expert"]}
    module.get_gemma_config = lambda variant: types.SimpleNamespace(**variants[variant])
    module.PaliGemmaForConditionalGeneration, module.GemmaForCausalLM = small_paligemma, small_gemma


def opened(folder: Path) -> Any:
    """Return the policy. Raises KeyError if a tensor is not that of the folder; pi's class only prints it."""
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class
    from safetensors.torch import load_file

    kind = PreTrainedConfig.from_pretrained(folder).type
    if (folder / "paligemma").is_dir():
        with_sizes(kind, json.loads((folder / "paligemma" / "config.json").read_text()))
    policy = get_policy_class(kind).from_pretrained(folder, strict=True)
    stored = load_file(folder / "model.safetensors")
    for name, tensor in policy.state_dict().items():
        if not torch.equal(tensor, stored[name].to(tensor.dtype)):
            raise KeyError(f"{folder}: {name} was not read")
    return policy


@torch.no_grad()
def acted(folder: Path, observed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the chunk [B, S, A] and the first action [B, A], through LeRobot's processors, from the stored noise.

    With `coming` among what was observed also the chunk under real-time chunking, [B, S, A].
    """
    from lerobot.policies.factory import make_pre_post_processors
    from safetensors.torch import load_file

    policy = opened(folder)
    before, after = make_pre_post_processors(policy.config, str(folder))
    batch: dict[str, Any] = {
        name: torch.from_numpy(values) for name, values in observed.items() if name.startswith("observation.")
    }
    settings = {name: observed[name].item() for name in SETTINGS if name in observed}
    guidance = settings | {"coming": observed["coming"]} if settings else None
    num_rows = len(batch["observation.state"])
    batch = before(batch | {"task": [str(observed["sentence"])] * num_rows})
    noise = load_file(folder / "first_noise.safetensors")["noise"].repeat(num_rows, 1, 1)
    chunk = after(policy.predict_action_chunk(batch, noise=noise))
    policy.reset()
    guided = {} if guidance is None else {"guided": after(guided_chunk(policy, batch, noise, guidance)).numpy()}
    first = {} if policy.name != "smolvla" else {"first": after(policy.select_action(batch, noise=noise)).numpy()}
    return {"chunk": chunk.numpy()} | first | guided


def guided_chunk(policy: Any, batch: dict[str, Any], noise: torch.Tensor, guidance: dict[str, Any]) -> torch.Tensor:
    """Return the chunk under real-time chunking. guidance: `coming` [B, L, A], normalized, and the settings."""
    from lerobot.configs.types import RTCAttentionSchedule
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    schedule = RTCAttentionSchedule[guidance["schedule"]]
    policy.config.rtc_config = RTCConfig(True, schedule, guidance["max_weight"], guidance["horizon"])
    policy.init_rtc_processor()
    coming = torch.from_numpy(guidance["coming"])
    chunk: torch.Tensor = policy.predict_action_chunk(
        batch, noise=noise, inference_delay=guidance["delay"], prev_chunk_left_over=coming
    )
    policy.config.rtc_config = None
    policy.init_rtc_processor()
    return chunk


def main() -> None:
    """Act in every folder."""
    observed_file, acted_file, *folders = map(Path, sys.argv[1:])
    with np.load(observed_file) as stored:
        observed = dict(stored)
    if observed.pop("is_exact"):
        with_whole_positions()
    found = {f"{folder.name} {name}": values for folder in folders for name, values in acted(folder, observed).items()}
    np.savez(acted_file, **found)


if __name__ == "__main__":
    main()
