"""Makes tests/data/published/smolvla*: outputs of LeRobot's own SmolVLA for small random weights.

Run once, in the environment that `make lerobot` makes, which has LeRobot's own transformers; nothing of it is kept:

    PYTHONPATH=. .cache/lerobot/bin/python scripts/oracles/smolvla.py tests/data/published

It writes the outputs of three variants, the 500 tensors of the full size, and a folder as LeRobot saves it. Two things
are replaced: the positions of the patches of a picture are whole numbers, which transformers below 5 shifts in float32;
and SmolVLM's processor, of which the network takes two token ids, is an object that has them. Weights are drawn by name
and shape: only outputs are stored.
"""

from __future__ import annotations

import json
import sys
import tempfile
import types
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.policies.flow.spec import VisionSizes
from rlrun.policies.smolvla.config import SmolVLAConfig, TextSizes, VLMSizes
from rlrun.policies.tokenizer import save_tokenizer, word_tokenizer
from scripts.oracles.openvla_oft import drawn

BATCH, HEIGHT, WIDTH, SIDE, CHUNK, NUM_STATES, NUM_ACTIONS, NUM_WORDS = 3, 24, 40, 32, 5, 7, 6, 6
CAMERAS = ("observation.images.front", "observation.images.wrist")
VLM = VLMSizes(
    vision=VisionSizes(32, 48, num_hidden_layers=2, num_attention_heads=4, image_size=SIDE, patch_size=8),
    text=TextSizes(48, 64, 6, num_attention_heads=3, num_key_value_heads=1, head_dim=16, vocab_size=50),
    scale_factor=2,
    fake_image_token_id=3,
    global_image_token_id=4,
)
VARIANTS: dict[str, dict[str, Any]] = {
    "cross": {},
    "special_tokens": {"add_image_special_tokens": True, "prefix_length": 30, "num_steps": 4},
    "self": {"attention_mode": "self_attn"},
}
NUM_DIRECTIONS = 8
INSTRUCTION = "turn on the radio"


def configured(name: str) -> SmolVLAConfig:
    """Return the small configuration of a variant."""
    pictures = {camera: {"type": "VISUAL", "shape": [3, HEIGHT, WIDTH]} for camera in CAMERAS}
    state = {"observation.state": {"type": "STATE", "shape": [NUM_STATES]}}
    return SmolVLAConfig(
        input_features=state | pictures,
        output_features={"action": {"type": "ACTION", "shape": [NUM_ACTIONS]}},
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        resize_imgs_with_padding=(SIDE, SIDE),
        num_vlm_layers=4,
        tokenizer_max_length=NUM_WORDS,
        pad_language_to="max_length",
        vlm_model_name="vlm",
        vlm=VLM,
        **VARIANTS[name],
    )


def normal(name: str, *shape: int) -> np.ndarray:
    """Return standard normal numbers, the same wherever numpy draws them."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)


def observed() -> dict[str, np.ndarray]:
    """Return pictures uint8 [B, N, H, W, 3], their masks [B, N], words and masks [B, L], padded state [B, 32]."""
    pictures = np.random.default_rng(5).integers(0, 256, (BATCH, len(CAMERAS), HEIGHT, WIDTH, 3), dtype=np.uint8)
    state = np.zeros((BATCH, 32), np.float32)
    state[:, :NUM_STATES] = normal("state", BATCH, NUM_STATES)
    return {
        "pictures": pictures,
        "picture_masks": np.array([[True, True], [True, False], [True, True]]),
        "tokens": np.random.default_rng(6).integers(5, 50, (BATCH, NUM_WORDS)),
        "token_masks": np.arange(NUM_WORDS) < np.array([[NUM_WORDS], [4], [2]]),
        "state": state,
    }


def learned() -> dict[str, np.ndarray]:
    """Return actions and noise [B, T, 32] and flow times [B] of a training step."""
    actions = np.zeros((BATCH, CHUNK, 32), np.float32)
    actions[..., :NUM_ACTIONS] = normal("actions", BATCH, CHUNK, NUM_ACTIONS)
    return {
        "actions": actions,
        "noise": normal("noise", BATCH, CHUNK, 32),
        "time": np.array([0.1, 0.5, 0.9], np.float32),
    }


def sketch(name: str, gradient: torch.Tensor) -> np.ndarray:
    """Project a gradient onto a few random directions, float32 [8]: norms of errors keep their relative size."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    directions = generator.standard_normal((NUM_DIRECTIONS, gradient.numel()))
    return (directions @ gradient.detach().double().flatten().numpy()).astype(np.float32)


def statistics() -> dict[str, dict[str, np.ndarray]]:
    """Return mean and standard deviation of the state and the actions, by LeRobot's feature."""
    sizes = {"observation.state": NUM_STATES, "action": NUM_ACTIONS}
    return {
        name: {"mean": normal(f"{name}.mean", size), "std": 0.5 + np.abs(normal(f"{name}.std", size))}
        for name, size in sizes.items()
    }


def lerobot() -> tuple[Any, Any, Any]:
    """Return LeRobot's class of the policy, that of its configuration, and the function that makes processors."""
    from tests.golden.lerobot_acts import with_whole_positions

    with_whole_positions()
    import transformers

    tokens = types.SimpleNamespace(
        fake_image_token_id=VLM.fake_image_token_id, global_image_token_id=VLM.global_image_token_id
    )
    transformers.AutoProcessor.from_pretrained = lambda *args, **options: types.SimpleNamespace(tokenizer=tokens)
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig as Config
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
    from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

    return SmolVLAPolicy, Config, make_smolvla_pre_post_processors


def theirs(config: SmolVLAConfig, folder: Path, **more: object) -> Any:
    """Return LeRobot's configuration, with the VLM's sizes in `folder`."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    _, Config, _ = lerobot()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.vlm.as_transformers()))
    values = config.as_lerobot() | {"vlm_model_name": str(folder), "device": "cpu"} | more
    for name in ("input_features", "output_features"):
        values[name] = {
            key: PolicyFeature(FeatureType(feature["type"]), tuple(feature["shape"]))
            for key, feature in values[name].items()
        }
    values.pop("type")
    values.pop("normalization_mapping")
    return Config(**values, freeze_vision_encoder=False, train_expert_only=False)


def made(name: str, folder: Path) -> Any:
    """Return LeRobot's policy of a variant, with drawn weights."""
    policy = lerobot()[0](theirs(configured(name), folder))
    with torch.no_grad():
        for weight, tensor in policy.state_dict().items():
            tensor.copy_(drawn(weight, tuple(tensor.shape)))
    return policy.requires_grad_(True).eval()


def outputs(name: str) -> dict[str, np.ndarray]:
    """Return what a variant computes of `observed` and `learned`."""
    with tempfile.TemporaryDirectory() as folder:
        policy = made(name, Path(folder))
    inputs = {key: torch.from_numpy(value) for key, value in (observed() | learned()).items()}
    batch = {camera: inputs["pictures"][:, i].permute(0, 3, 1, 2) / 255.0 for i, camera in enumerate(CAMERAS)} | {
        f"{camera}_padding_mask": inputs["picture_masks"][:, i] for i, camera in enumerate(CAMERAS)
    }
    pictures, masks = policy.prepare_images(batch)
    given = (pictures, masks, inputs["tokens"], inputs["token_masks"], inputs["state"])
    with torch.no_grad():
        embeddings, seen, _ = policy.model.embed_prefix(*given)
        actions = policy.model.sample_actions(*given, noise=inputs["noise"])
    losses = policy.model.forward(*given, inputs["actions"], inputs["noise"], inputs["time"])
    losses.mean().backward()
    gradients = {key: p.grad for key, p in policy.named_parameters() if p.grad is not None}
    return {
        "pixels": torch.stack(pictures, dim=1).numpy(),
        "embeddings": embeddings.numpy(),
        "seen": seen.numpy(),
        "actions": actions.numpy(),
        "losses": losses.detach().numpy(),
    } | {f"gradient {key}": sketch(key, gradient) for key, gradient in gradients.items() if gradient.norm() > 0}


def full_size() -> dict[str, list[int]]:
    """Return the tensors of the 450 M model: name -> shape."""
    with tempfile.TemporaryDirectory() as folder, torch.device("meta"):
        policy = lerobot()[0](theirs(SmolVLAConfig(), Path(folder)))
    return {name: list(tensor.shape) for name, tensor in policy.state_dict().items()}


def save(folder: Path) -> None:
    """Write a folder as LeRobot does, with the VLM's folder in it, and without the weights, which are drawn."""
    policy = made("cross", folder / "vlm")
    save_tokenizer(word_tokenizer([INSTRUCTION]), folder / "vlm")
    policy.config.save_pretrained(folder)
    stats = {name: {key: torch.from_numpy(x) for key, x in own.items()} for name, own in statistics().items()}
    for processor in lerobot()[2](policy.config, stats):
        processor.save_pretrained(folder)
    for file in folder.glob("*.json"):
        file.write_text(file.read_text().replace(str(folder / "vlm"), "vlm") + "\n")


def make(out: Path) -> None:
    """Write all files of the oracle."""
    for name in VARIANTS:
        np.savez_compressed(out / f"smolvla_{name}.npz", **outputs(name))
    (out / "smolvla_state_dict.json").write_text(json.dumps(full_size(), indent=0) + "\n")
    save(out / "smolvla_folder")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
