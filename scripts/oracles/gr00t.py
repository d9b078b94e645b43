"""Makes tests/data/published/gr00t*: outputs of LeRobot's own GR00T N1.7 for small random weights.

Run in the environment of scripts/gr00t_environment.py, which has LeRobot's files and diffusers; nothing of it is kept:

    PYTHONPATH=. .cache/gr00t/bin/python scripts/oracles/gr00t.py golden tests/data/published
    PYTHONPATH=. .cache/gr00t/bin/python scripts/oracles/gr00t.py further OUT

`golden` writes the outputs of GOLDEN, and names and shapes of the tensors of the full size; `further` the outputs of
other sizes, seeds, embodiments and cameras, which a test compares where that environment is. LeRobot's files of the
network are run as they are, and noise and times are given instead of drawn. Weights are drawn by name and shape: only
outputs are stored.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from rlrun.policies.flow.lerobot_config import features
from rlrun.policies.gr00t.config import (
    BackboneSizes,
    Gr00tConfig,
    Gr00tSizes,
    Pictures,
    TextSizes,
    TowerSizes,
    TransformerSizes,
)
from scripts.oracles.openvla_oft import drawn
from scripts.oracles.smolvla import normal, sketch
from tests.numerics import computed_in_double

IMAGE, NUM_WORDS = 7, 40  # the token of pictures, and the vocabulary
NAMES = ("front", "wrist", "side")


@dataclass(frozen=True)
class Case:
    """A network and what it is shown."""

    seed: int
    embodiment: int
    num_cameras: int
    num_rows: int = 3
    side: int = 32  # pixels
    num_steps: int = 4  # of the flow
    horizon: int = 5
    num_layers: int = 5  # of the transformer of actions
    num_features: int = 2  # layers between the VLM and the actions
    width: int = 64  # of the language model
    turn: int = 2  # attend_text_every_n_blocks

    @property
    def config(self) -> Gr00tConfig:
        """The small configuration."""
        vision = TowerSizes(32, 48, 3, 2, patch_size=8, num_position_embeddings=36, deepstack_visual_indexes=(0, 2))
        text = TextSizes(self.width, 80, 4, 4, 2, self.width // 4, NUM_WORDS, rope_theta=500.0, mrope_section=(4, 2, 2))
        sizes = Gr00tSizes(
            dit=TransformerSizes(self.num_layers, 4, 12),
            vl_self_attention=TransformerSizes(self.num_features, 2, self.width // 2),
            hidden_size=40,
            select_layer=3,
            action_horizon=self.horizon,
            max_state_dim=11,
            max_action_dim=9,
            max_num_embodiments=4,
            max_seq_len=16,
            attend_text_every_n_blocks=self.turn,
            backbone=BackboneSizes(vision, text, IMAGE),
        )
        return Gr00tConfig(
            **features(NAMES[: self.num_cameras], self.side, 7, 6),
            chunk_size=self.horizon,
            n_action_steps=self.horizon,
            max_state_dim=11,
            max_action_dim=9,
            num_inference_timesteps=self.num_steps,
            embodiment=self.embodiment,
            sizes=sizes,
            pictures=Pictures((self.side, self.side), None),
        )


GOLDEN = {"first": Case(0, 2, 2), "second": Case(1, 0, 1, side=48, num_steps=10, horizon=8, num_layers=6)}
FURTHER = {
    "three cameras": Case(2, 3, 3),
    "another seed": Case(3, 2, 2),
    "another embodiment": Case(0, 1, 2),
    "a large picture": Case(4, 1, 1, side=112),
    "no features": Case(5, 0, 2, num_features=0),
    "words at every turn": Case(6, 0, 1, turn=1, num_layers=4),
    "a wide model, one row, seven steps": Case(7, 3, 2, num_rows=1, num_steps=7, width=80),
}


def weight(case: Case, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the random weight of a name. Matrices are large enough that attention is far from uniform."""
    return drawn(f"{case.seed} {name}", shape) * (3.0 if len(shape) > 1 else 1.0)


def observed(case: Case) -> dict[str, np.ndarray]:
    """Return pictures uint8 [B, N, S, S, 3], tokens int64 [B, L] with those of pictures among them, state [B, 11]."""
    generator, config = np.random.default_rng(case.seed), case.config
    pictures = generator.integers(0, 256, (case.num_rows, case.num_cameras, case.side, case.side, 3), dtype=np.uint8)
    words = generator.integers(IMAGE + 1, NUM_WORDS, (case.num_rows, 6 + 2 * case.num_cameras))
    tokens = [words[:, :2]]
    for i in range(case.num_cameras):
        around = words[:, 2 + 2 * i : 4 + 2 * i]
        shown = np.full((case.num_rows, config.tokens_per_image), IMAGE)
        tokens += [around[:, :1], shown, around[:, 1:]]
    state = np.zeros((case.num_rows, 11), np.float32)
    state[:, :7] = normal(f"{case.seed} state", case.num_rows, 7)
    return {"pictures": pictures, "tokens": np.concatenate([*tokens, words[:, -4:]], axis=1), "state": state}


def learned(case: Case) -> dict[str, np.ndarray]:
    """Return actions and noise [B, T, 9] and flow times [B] of a training step."""
    size = (case.num_rows, case.horizon, 9)
    actions = np.zeros(size, np.float32)
    actions[..., :6] = normal(f"{case.seed} actions", *size[:2], 6)
    time = np.linspace(0.1037, 0.9512, case.num_rows, dtype=np.float32)  # in the middle of buckets
    return {"actions": actions, "noise": normal(f"{case.seed} noise", *size), "time": time}


def theirs(sizes: Gr00tSizes, folder: Path) -> Any:
    """Return LeRobot's network, with the sizes of the VLM in `folder`."""
    from lerobot.policies.groot import groot_n1_7

    (folder / "config.json").write_text(json.dumps(sizes.backbone.as_transformers()))
    config = groot_n1_7.GR00TN17Config(**sizes.as_nvidia(str(folder)))
    return groot_n1_7.GR00TN17(config, load_backbone_weights=False)


def made(case: Case, folder: Path) -> Any:
    """Return LeRobot's network of a case, with drawn weights."""
    model = theirs(case.config.sizes, folder)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not name.endswith("lm_head.weight"):  # the embeddings
                tensor.copy_(weight(case, name, tuple(tensor.shape)))
    model.action_head.config.num_inference_timesteps = model.action_head.num_inference_timesteps = case.num_steps
    return model.requires_grad_(True).eval()


def patches(case: Case, pictures: np.ndarray) -> dict[str, torch.Tensor]:
    """Return what transformers' processor makes of pictures [B, N, S, S, 3]."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    half = [0.5] * 3
    limits = {"shortest_edge": 1, "longest_edge": 10**8}
    processor = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, size=limits, image_mean=half, image_std=half)
    found = processor(list(pictures.reshape(-1, case.side, case.side, 3)), return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_grid_thw")}


def outputs(case: Case) -> dict[str, np.ndarray]:
    """Return what the network of a case computes of `observed` and `learned`, in float64, stored as float32."""
    with tempfile.TemporaryDirectory() as folder:
        model = made(case, Path(folder))
    shown = patches(case, observed(case)["pictures"])
    given = {key: torch.from_numpy(value) for key, value in (observed(case) | learned(case)).items()}
    numbers = (given["state"], given["actions"], given["noise"], given["time"], shown["pixel_values"])
    found = computed_in_double(model, partial(computed, case, given["tokens"], shown["image_grid_thw"]), *numbers)
    return {"pixels": shown["pixel_values"].numpy()} | {key: x.astype(np.float32) for key, x in found.items()}


def computed(
    case: Case,
    tokens: torch.Tensor,
    grid: torch.Tensor,
    model: Any,
    state: torch.Tensor,
    actions: torch.Tensor,
    noise: torch.Tensor,
    time: torch.Tensor,
    pixels: torch.Tensor,
) -> dict[str, np.ndarray]:
    """Act and learn. The arguments are those of `observed` and `learned`, and the VLM's pictures."""
    from transformers.feature_extraction_utils import BatchFeature

    shown = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "image_grid_thw": grid}
    shown["pixel_values"] = pixels
    acting = {"state": state[:, None], "embodiment_id": torch.full((case.num_rows,), case.embodiment)}
    learning = acting | {"action": actions, "action_mask": torch.ones_like(actions)}
    head = model.action_head
    head.sample_time = lambda *args, **options: time
    with mock.patch.object(torch, "randn", side_effect=lambda *args, **options: noise.clone()):
        with torch.no_grad():
            backbone = model.backbone(BatchFeature(dict(shown)))
            hidden = backbone["backbone_features"].clone()
            acted = head.get_action(backbone, BatchFeature(acting))["action_pred"]
        found = head(model.backbone(BatchFeature(dict(shown))), BatchFeature(learning))
    found["action_loss"].mean().backward()
    gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    outputs = {"hidden": hidden.numpy(), "actions": acted.numpy(), "losses": found["action_loss"].detach().numpy()}
    return outputs | {f"gradient {key}": sketch(key, gradient) for key, gradient in gradients.items()}


def full_size() -> dict[str, list[int]]:
    """Return the shapes of the tensors of the published size, by name; the head over words is the embeddings."""
    with tempfile.TemporaryDirectory() as folder, torch.device("meta"):
        model = theirs(Gr00tSizes(), Path(folder))
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if not name.endswith("lm_head.weight")}


def main() -> None:
    """Write the files of `golden` or `further`."""
    out = Path(sys.argv[2])
    if sys.argv[1] == "golden":
        (out / "gr00t_state_dict.json").write_text(json.dumps(full_size(), indent=0) + "\n")
    for name, case in (GOLDEN if sys.argv[1] == "golden" else FURTHER).items():
        np.savez_compressed(out / f"gr00t_{name.replace(' ', '_')}.npz", **outputs(case))


if __name__ == "__main__":
    main()
