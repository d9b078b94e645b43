"""Makes tests/data/published/pi*: outputs of LeRobot's own pi0 and pi0.5 for small random weights.

Run once, in an environment of its own; nothing of LeRobot or openpi is kept:

    python -m venv ENV
    ENV/bin/pip install --no-deps lerobot==0.4.4 transformers==4.53.2 "tokenizers<0.22" "huggingface_hub<1.0" draccus \\
        mergedeep typing-inspect mypy-extensions pyyaml-include toml einops pandas jsonlines
    echo SITE_PACKAGES_OF_RLRUN > ENV/lib/python3.11/site-packages/rlrun.pth   # torch
    cp -r OPENPI/src/openpi/models_pytorch/transformers_replace/* ENV/lib/python3.11/site-packages/transformers/
    PYTHONPATH=. ENV/bin/python scripts/oracles/pi.py tests/data/published

The copied files are openpi's change of transformers, which LeRobot's classes need. The classes fix some sizes: the
small models get their vision tower and vocabulary by replacing modules after construction. Weights are drawn by name
and shape: only outputs are stored.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.policies.pi.config import GemmaSizes, PiConfig
from rlrun.policies.smolvla.config import VisionSizes
from scripts.oracles.openvla_oft import drawn
from scripts.oracles.smolvla import CHUNK, SIDE, Absent, learned, normal, observed, sketch

KINDS = ("pi0", "pi05")
HEADS = ("paligemma.lm_head.weight", "gemma_expert.lm_head.weight")  # over words, which flow matching does not read


def configured(kind: Any) -> PiConfig:
    """Return the small configuration of a kind."""
    return PiConfig(
        type=kind,
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        language=GemmaSizes(width=64, mlp_dim=96, depth=3, num_heads=8, num_kv_heads=1, head_dim=16),
        expert=GemmaSizes(width=48, mlp_dim=80, depth=3, num_heads=8, num_kv_heads=1, head_dim=16),
        vision=VisionSizes(32, 48, 2, 4, image_size=SIDE, patch_size=8),
        vocab_size=50,
    )


def pixels() -> np.ndarray:
    """Return float32 [B, N, 3, SIDE, SIDE] in [-1, 1]."""
    return np.tanh(normal("pixels", *observed()["pictures"].shape[:2], 3, SIDE, SIDE))


def classes(kind: str) -> tuple[Any, Any, types.ModuleType]:
    """Return LeRobot's network, configuration, and the network's module."""
    import importlib

    import transformers

    _ = transformers.PaliGemmaForConditionalGeneration, transformers.GemmaForCausalLM  # before the finder
    sys.meta_path.insert(0, Absent())
    found = importlib.util.find_spec("lerobot")
    assert found is not None
    assert found.submodule_search_locations is not None
    root = Path(found.submodule_search_locations[0])
    for name in ("lerobot.policies", "lerobot.policies.pi0", "lerobot.policies.pi05"):  # packages that import all
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    module = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    title = {"pi0": "PI0", "pi05": "PI05"}[kind]
    return getattr(module, f"{title}Pytorch"), getattr(module, f"{title}Config"), module


class Named(torch.nn.Module):
    """Gives a network the names that it has in LeRobot's policy."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model


def made(kind: str) -> Any:
    """Return LeRobot's small network with drawn weights, as Named."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    Network, Config, module = classes(kind)
    own = configured(kind)
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
    named = Named(network)
    with torch.no_grad():
        for name, tensor in named.state_dict().items():
            if not name.endswith(HEADS):
                tensor.copy_(drawn(name, tuple(tensor.shape)))
    return named.float().requires_grad_(True).eval()


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


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for kind in KINDS:
        (out / f"{kind}_state_dict.json").write_text(json.dumps(full_size(kind), indent=0) + "\n")
        np.savez_compressed(out / f"{kind}.npz", **outputs(kind))
