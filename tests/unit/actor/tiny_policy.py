"""A policy and processor of a few hundred parameters with the real ones' interface, for tests of the actor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

BINS = 256


@dataclass
class TinyInputs:
    input_ids: Tensor
    attention_mask: Tensor
    pixel_values: Tensor
    proprio: Tensor | None


@dataclass
class TinyOutput:
    action_logits: Tensor
    value: Tensor


class TinyProcessor:
    def __call__(self, images: Tensor, instructions, proprio: np.ndarray, device) -> TinyInputs:
        ids = torch.tensor([[len(text) % 7] for text in instructions])
        return TinyInputs(ids, torch.ones_like(ids), images.float().flatten(1) / 255, torch.from_numpy(proprio))

    def save(self, folder: Path) -> None:
        (folder / "processor.json").write_text("{}")

    def encode_actions(self, actions: np.ndarray) -> np.ndarray:
        return np.clip((actions + 1) * 127.5, 0, 255).astype(np.uint8).reshape(len(actions), -1)


class TinyConfig:
    def save_pretrained(self, folder: Path) -> None:
        (folder / "config.json").write_text("{}")


class TinyPolicy(nn.Module):
    """Two blocks in a ModuleList, an embedding at the root, a parameter that the forward pass never uses."""

    def __init__(self, num_tokens: int, num_pixels: int, num_proprio: int, width: int = 16):
        super().__init__()
        self.config = TinyConfig()
        self.num_tokens = num_tokens
        self.words = nn.Embedding(7, width)
        self.pixels = nn.Linear(num_pixels, width)
        self.proprio = nn.Linear(num_proprio, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))
        self.unused = nn.Linear(3, 3).requires_grad_(False)
        self.actions = nn.Linear(width, num_tokens * BINS)
        self.value_head = nn.Linear(width, 1)

    def forward(self, input_ids, attention_mask, pixel_values, proprio=None) -> TinyOutput:
        x = self.words(input_ids[:, 0]) + self.pixels(pixel_values) + self.proprio(proprio.to(pixel_values.dtype))
        for block in self.blocks:
            x = x + block(x)
        logits = self.actions(x).float().view(len(x), self.num_tokens, BINS)
        return TinyOutput(logits, self.value_head(x).float().squeeze(-1))

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        folder.mkdir()
        save_file(state_dict, folder / "model.safetensors")

    def fsdp_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def frozen_names(self) -> set[str]:
        return {"unused.weight", "unused.bias"}
