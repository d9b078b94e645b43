"""Makes tests/data/published/pi*: outputs and folders of LeRobot's own pi0 and pi0.5 for small random weights.

Run once, in an environment of LeRobot's own with openpi's change of transformers, of which nothing is kept:

    python scripts/lerobot_environment.py .cache/lerobot CLONE_OF_OPENPI
    PYTHONPATH=.:.cache/lerobot/pi .cache/lerobot/bin/python scripts/oracles/pi.py tests/data/published

The classes fix some sizes: the small models get their vision tower and vocabulary by replacing modules after
construction. Weights are drawn by name and shape: only outputs are stored.
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
from tokenizers import Tokenizer

from rlrun.policies.flow.spec import VisionSizes
from rlrun.policies.pi.config import GemmaSizes, PiConfig, PiSizes
from rlrun.policies.tokenizer import word_tokenizer
from scripts.oracles.openvla_oft import drawn
from scripts.oracles.smolvla import (
    CAMERAS,
    CHUNK,
    HEIGHT,
    INSTRUCTION,
    NUM_ACTIONS,
    NUM_STATES,
    SIDE,
    WIDTH,
    learned,
    normal,
    observed,
    sketch,
)
from scripts.oracles.smolvla import statistics as of_smolvla

KINDS = ("pi0", "pi05")
HEADS = ("paligemma.lm_head.weight", "gemma_expert.lm_head.weight")  # over words, which flow matching does not read


def configured(kind: str, vocab_size: int = 50) -> PiConfig:
    """Return the small configuration of a kind."""
    pictures = {camera: {"type": "VISUAL", "shape": [3, HEIGHT, WIDTH]} for camera in CAMERAS}
    state = {"observation.state": {"type": "STATE", "shape": [NUM_STATES]}}
    mode = "MEAN_STD" if kind == "pi0" else "QUANTILES"
    shared = {"depth": 3, "num_heads": 8, "num_kv_heads": 1, "head_dim": 16}
    return PiConfig(
        input_features=state | pictures,
        output_features={"action": {"type": "ACTION", "shape": [NUM_ACTIONS]}},
        normalization_mapping={"VISUAL": "IDENTITY", "STATE": mode, "ACTION": mode},
        type=kind,
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        tokenizer_max_length={"pi0": 48, "pi05": 200}[kind],
        image_resolution=(SIDE, SIDE),
        sizes=PiSizes(
            language=GemmaSizes(width=64, mlp_dim=96, **shared),
            expert=GemmaSizes(width=48, mlp_dim=80, **shared),
            vision=VisionSizes(32, 48, 2, 4, image_size=SIDE, patch_size=8),
            vocab_size=vocab_size,
        ),
    )


def statistics(kind: str) -> dict[str, dict[str, np.ndarray]]:
    """Return the statistics of state and actions, by LeRobot's feature."""
    if kind == "pi0":
        return of_smolvla()
    sizes = {"observation.state": NUM_STATES, "action": NUM_ACTIONS}
    low = {name: normal(f"{name}.q01", size) - 1 for name, size in sizes.items()}
    return {name: {"q01": x, "q99": x + 1 + np.abs(normal(f"{name}.q99", len(x)))} for name, x in low.items()}


def tokenizer() -> Tokenizer:
    """Return a tokenizer of the words of the prompt, and of the numbers of the state."""
    return word_tokenizer([INSTRUCTION, "Task: State: ; Action:", " ".join(map(str, range(-1, 256)))])


def pixels() -> np.ndarray:
    """Return float32 [B, N, 3, SIDE, SIDE] in [-1, 1]."""
    return np.tanh(normal("pixels", *observed()["pictures"].shape[:2], 3, SIDE, SIDE))


def classes(kind: str) -> tuple[Any, Any, types.ModuleType]:
    """Return LeRobot's network, configuration, and the network's module."""
    from tests.golden import lerobot_acts  # torchvision can then be imported

    _ = lerobot_acts.OPERATORS
    module = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    title = {"pi0": "PI0", "pi05": "PI05"}[kind]
    return getattr(module, f"{title}Pytorch"), getattr(module, f"{title}Config"), module


class Named(torch.nn.Module):
    """Gives a network the names that it has in LeRobot's policy."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model


def small(kind: str, own: PiSizes) -> Any:
    """Return LeRobot's small network with new weights, as Named."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    Network, Config, module = classes(kind)
    sizes = {"gemma_2b": own.language, "gemma_300m": own.expert}
    module.get_gemma_config = lambda variant: sizes[variant]
    network = Network(Config(chunk_size=CHUNK, n_action_steps=CHUNK, image_resolution=(SIDE, SIDE), device="cpu"))
    pali = network.paligemma_with_expert.paligemma.model
    vision = SiglipVisionConfig(
        hidden_size=own.vision.hidden_size,
        intermediate_size=own.vision.intermediate_size,
        num_hidden_layers=own.vision.num_hidden_layers,
        num_attention_heads=own.vision.num_attention_heads,
        image_size=SIDE,
        patch_size=own.vision.patch_size,
        vision_use_head=False,
    )
    pali.vision_tower = SiglipVisionModel(vision)
    pali.multi_modal_projector.linear = torch.nn.Linear(own.vision.hidden_size, own.language.width)
    pali.language_model.embed_tokens = torch.nn.Embedding(own.vocab_size, own.language.width)
    network.paligemma_with_expert.paligemma.lm_head = torch.nn.Linear(own.language.width, own.vocab_size, bias=False)
    network.paligemma_with_expert.gemma_expert.lm_head = torch.nn.Linear(own.expert.width, own.vocab_size, bias=False)
    return Named(network).float().requires_grad_(True).eval()


def made(kind: str, vocab_size: int = 50) -> Any:
    """Return LeRobot's small network with drawn weights, as Named."""
    named = small(kind, configured(kind, vocab_size).sizes)
    with torch.no_grad():
        for name, tensor in named.state_dict().items():
            if not name.endswith(HEADS):
                tensor.copy_(drawn(name, tuple(tensor.shape)))
    return named


def outputs(kind: str) -> dict[str, np.ndarray]:
    """Return what a network computes of `observed`, `pixels` and `learned`."""
    named = made(kind)
    given = {key: torch.from_numpy(value) for key, value in (observed() | learned()).items()}
    images, shown = torch.from_numpy(pixels()).unbind(1), given["picture_masks"].unbind(1)
    seen = (list(images), list(shown), given["tokens"], given["token_masks"])
    seen += (given["state"],) if kind == "pi0" else ()
    actions = named.model.sample_actions(*seen, noise=given["noise"])
    losses = named.model.forward(*seen, given["actions"], given["noise"], given["time"])
    losses.mean().backward()
    gradients = {key: p.grad for key, p in named.named_parameters() if p.grad is not None}
    return {"actions": actions.numpy(), "losses": losses.detach().numpy()} | {
        f"gradient {key}": sketch(key, gradient) for key, gradient in gradients.items() if gradient.norm() > 0
    }


def full_size(kind: str) -> dict[str, list[int]]:
    """Return the tensors of the published size: name -> shape."""
    Network, Config, _ = classes(kind)
    with torch.device("meta"):
        named = Named(Network(Config(device="cpu")))
    return {name: list(tensor.shape) for name, tensor in named.state_dict().items()}


def described(kind: str) -> tuple[Any, Any, Any]:
    """Return LeRobot's configuration of a folder, and its processors, whose tokenizer is `tokenizer`."""
    import transformers
    from lerobot.configs.types import FeatureType, PolicyFeature

    words = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), pad_token="<unk>")
    transformers.AutoTokenizer.from_pretrained = lambda *args, **options: words
    _, Config, _ = classes(kind)
    own = configured(kind)
    features = {
        name: {
            key: PolicyFeature(FeatureType(feature["type"]), tuple(feature["shape"]))
            for key, feature in getattr(own, name).items()
        }
        for name in ("input_features", "output_features")
    }
    config = Config(chunk_size=CHUNK, n_action_steps=CHUNK, image_resolution=(SIDE, SIDE), device="cpu", **features)
    stats = {name: {key: torch.from_numpy(x) for key, x in values.items()} for name, values in statistics(kind).items()}
    module = importlib.import_module(f"lerobot.policies.{kind}.processor_{kind}")
    return config, *getattr(module, f"make_{kind}_pre_post_processors")(config, stats)


def acted(kind: str, named: Any) -> dict[str, np.ndarray]:
    """Return what LeRobot makes of raw pictures, a raw state and an instruction: inputs, and actions."""
    config, before, after = described(kind)
    module = classes(kind)[2]
    given, noise = observed(), torch.from_numpy(learned()["noise"])
    batch = {
        camera: torch.from_numpy(given["pictures"][:, i]).permute(0, 3, 1, 2) / 255.0
        for i, camera in enumerate(CAMERAS)
    }
    batch |= {"observation.state": torch.from_numpy(given["state"][:, :NUM_STATES])}
    batch = before(batch | {"task": [INSTRUCTION] * len(noise)})
    policy = getattr(module, {"pi0": "PI0Policy", "pi05": "PI05Policy"}[kind])
    this = types.SimpleNamespace(config=config, parameters=named.parameters)
    images, shown = policy._preprocess_images(this, batch)
    words = batch["observation.language.tokens"], batch["observation.language.attention_mask"]
    state = (module.pad_vector(batch["observation.state"], 32),) if kind == "pi0" else ()
    with torch.no_grad():
        actions = named.model.sample_actions(images, shown, *words, *state, noise=noise)
    return {
        "pixels": torch.stack(images, dim=1).numpy(),
        "tokens": words[0].numpy(),
        "token_masks": words[1].numpy(),
        "actions": after(actions[..., :NUM_ACTIONS]).numpy(),
    }


def save(kind: str, out: Path) -> None:
    """Write a folder as LeRobot does, without weights, which are drawn, and what LeRobot does with it."""
    folder = out / f"{kind}_folder"
    folder.mkdir(exist_ok=True)
    config, *processors = described(kind)
    config.save_pretrained(folder)
    for processor in processors:
        processor.save_pretrained(folder)
    for file in folder.glob("*.json"):
        file.write_text(file.read_text().replace("google/paligemma-3b-pt-224", "paligemma") + "\n")
    named = {"type": kind} | json.loads((folder / "config.json").read_text())  # as in published folders
    (folder / "config.json").write_text(json.dumps(named, indent=4) + "\n")
    np.savez_compressed(folder / "acted.npz", **acted(kind, made(kind, vocab_size=tokenizer().get_vocab_size())))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for kind in KINDS:
        (out / f"{kind}_state_dict.json").write_text(json.dumps(full_size(kind), indent=0) + "\n")
        np.savez_compressed(out / f"{kind}.npz", **outputs(kind))
        save(kind, out)
