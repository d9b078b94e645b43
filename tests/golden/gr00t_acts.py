"""Opens folders with LeRobot's own files of GR00T and acts: run by the interpreter of scripts/gr00t_environment.py.

`PYTHON tests/golden/gr00t_acts.py OBSERVED.npz ACTED.npz FOLDER …` writes, by the name of each folder, the chunk in
simulator units, through LeRobot's steps before and after the policy. OBSERVED.npz has pictures, state and a sentence.
Beside each folder it writes FOLDER_saved.safetensors, as LeRobot saves the policy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.lerobot_types import TransitionKey
from lerobot.policies.groot import groot_n1_7
from lerobot.policies.groot.configuration_groot import GrootConfig
from lerobot.processor import ProcessorStepRegistry
from safetensors.torch import load_file, load_model, save_model
from torch import nn
from transformers import AutoTokenizer, Qwen3VLProcessor
from transformers.feature_extraction_utils import BatchFeature
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import is_torchvision_available

PICTURES = Path(__file__).parents[2] / "scripts" / "gr00t_standins" / "pictures"
DONE_BEFORE = ("rename_observations_processor", "to_batch_processor", "device_processor")


def processors() -> Any:
    """Return LeRobot's module of steps, which asks for torchvision; transformers must not take the stand-in for it."""
    if str(PICTURES) not in sys.path:
        assert not is_torchvision_available()  # it asks once
        sys.path.append(str(PICTURES))
    from lerobot.policies.groot import processor_groot

    return processor_groot


class Policy(nn.Module):
    """LeRobot's class, as far as weights are concerned: the network of the base model, in float32."""

    def __init__(self, config: GrootConfig):
        super().__init__()
        self._groot_model = groot_n1_7.GR00TN17.from_pretrained(
            config.base_model_path, num_inference_timesteps=config.num_inference_timesteps
        )
        groot_n1_7._tie_unused_qwen_lm_head(self._groot_model.backbone.model)  # as LeRobot's class does
        for parameter in self._groot_model.parameters():
            parameter.data = parameter.data.float()


def opened(folder: Path) -> Policy:
    """Return the policy, of a configuration whose fields must be those of LeRobot's class."""
    values = json.loads((folder / "config.json").read_text())
    assert values.pop("type") == "groot"
    for name in ("input_features", "output_features"):
        values[name] = {
            key: PolicyFeature(FeatureType(feature["type"]), tuple(feature["shape"]))
            for key, feature in values[name].items()
        }
    config = GrootConfig(**values)
    assert all(getattr(config, name) == value for name, value in values.items()), "LeRobot replaces a value"
    policy = Policy(config).eval()
    missing, unexpected = load_model(policy, folder / "model.safetensors", strict=True)
    assert not missing and not unexpected
    stored = load_file(folder / "model.safetensors")
    for name, tensor in policy.state_dict().items():
        assert name.endswith("lm_head.weight") or torch.equal(tensor, stored[name]), name
    return policy


def steps(folder: Path, name: str) -> list[Any]:
    """Return GR00T's own steps of a processor, with their statistics."""
    processors()
    found = []
    for step in json.loads((folder / f"{name}.json").read_text())["steps"]:
        if step["registry_name"] not in DONE_BEFORE:
            made = ProcessorStepRegistry.steps[step["registry_name"]](**step["config"])
            if "state_file" in step:
                made.load_state_dict(load_file(folder / step["state_file"]))
            found.append(made)
    return found


def processor(name: str) -> Qwen3VLProcessor:
    """Return the VLM's processor, in place of LeRobot's function, which asks for torchvision."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.padding_side = "left"
    pictures = Qwen2VLImageProcessorPil.from_pretrained(name)
    with mock.patch.object(Qwen3VLProcessor, "check_argument_for_proper_class", create=True):
        return Qwen3VLProcessor(pictures, tokenizer, None, chat_template=tokenizer.chat_template)


@torch.no_grad()
def acted(folder: Path, observed: dict[str, np.ndarray]) -> np.ndarray:
    """Return the chunk [B, S, A] from the stored noise, row by row: each has a prompt of its own length."""
    policy = opened(folder)
    save_model(policy, folder.with_name(f"{folder.name}_saved.safetensors"))
    (pack, encode), (unpack,) = steps(folder, "policy_preprocessor"), steps(folder, "policy_postprocessor")
    encode._proc = processor(encode.model_name)
    noise = load_file(folder / "first_noise.safetensors")["noise"]
    model, chunks = policy._groot_model, []
    for row, sentence in enumerate(observed["sentences"]):
        given = {name: torch.from_numpy(x[row : row + 1]) for name, x in observed.items() if name != "sentences"}
        transition = {TransitionKey.OBSERVATION: given, TransitionKey.COMPLEMENTARY_DATA: {"task": [str(sentence)]}}
        ready = encode(pack(transition))
        inputs = ready[TransitionKey.COMPLEMENTARY_DATA] | ready[TransitionKey.OBSERVATION]
        shown = {name: inputs[name] for name in ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")}
        acting = BatchFeature({"state": inputs["state"], "embodiment_id": inputs["embodiment_id"].long()})
        with mock.patch.object(torch, "randn", side_effect=lambda *args, **options: noise.clone()):
            action = model.action_head.get_action(model.backbone(BatchFeature(shown)), acting)["action_pred"]
        chunks.append(unpack({TransitionKey.ACTION: action})[TransitionKey.ACTION])
    return torch.cat(chunks).numpy()


def resized() -> dict[str, np.ndarray]:
    """Return pictures as LeRobot resizes them, by the way and the size that a test asks for."""
    found = {}
    for side in (40, 64, 90):
        picture = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
        sizes = {"image_crop_size": None, "image_target_size": [64, 64], "shortest_image_edge": 64}
        by_area = processors()._transform_n1_7_image_for_vlm_albumentations
        bicubic = processors()._transform_n1_7_image_for_vlm_torch
        found[f"area {side}"] = by_area(picture, **sizes, crop_fraction=0.95)
        tensor = bicubic(torch.from_numpy(picture).permute(2, 0, 1).contiguous(), **sizes, crop_fraction=0.95)
        found[f"bicubic {side}"] = tensor.permute(1, 2, 0).numpy()
    return found


def main() -> None:
    """Act in every folder."""
    observed_file, acted_file, *folders = map(Path, sys.argv[1:])
    with np.load(observed_file) as stored:
        observed = dict(stored)
    np.savez(acted_file, **{folder.name: acted(folder, observed) for folder in folders}, **resized())


if __name__ == "__main__":
    main()
