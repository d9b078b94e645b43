"""A policy of a few hundred parameters behind the interface of every policy, for tests of the actor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.algorithms.losses import imitation_loss
from rlrun.config.schema import RunConfig
from rlrun.policies.distributions import Bins
from rlrun.policies.policy import ImitationPolicy
from rlrun.policies.weight_files import WeightFiles, write_weights

BINS = 256


class TinyModel(nn.Module):
    """Two blocks in a ModuleList, an embedding at the root, a parameter that the forward pass never uses."""

    def __init__(self, num_tokens: int, num_pixels: int, num_proprio: int, width: int = 16):
        super().__init__()
        self.num_tokens = num_tokens
        self.words = nn.Embedding(7, width)
        self.pixels = nn.Linear(num_pixels, width)
        self.proprio = nn.Linear(num_proprio, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))
        self.unused = nn.Linear(3, 3).requires_grad_(False)
        self.actions = nn.Linear(width, num_tokens * BINS)
        self.value_head = nn.Linear(width, 1)

    def forward(self, words, pixels, proprio) -> tuple[Tensor, Tensor]:
        x = self.words(words) + self.pixels(pixels) + self.proprio(proprio.to(pixels.dtype))
        for block in self.blocks:
            x = x + block(x)
        logits = self.actions(x).float().view(len(x), self.num_tokens, BINS)
        return logits, self.value_head(x).float().squeeze(-1)


class TinyPolicy(ImitationPolicy):
    """Reads of an instruction its length only."""

    def __init__(self, num_actions: int, num_tokens: int, num_pixels: int, num_proprio: int, width: int = 16):
        self.module = TinyModel(num_tokens, num_pixels, num_proprio, width)
        self.device = torch.device("cpu")
        self.num_actions, self.num_proprio = num_actions, num_proprio
        self.num_action_chunks = num_tokens // num_actions

    def __call__(self, images, instructions, proprio, temperature) -> tuple[Bins, Tensor]:
        words = torch.tensor([len(text) % 7 for text in instructions])
        pixels = torch.from_numpy(images).float().flatten(1) / 255
        logits, values = self.module(words, pixels, torch.from_numpy(proprio))
        return Bins(logits, temperature), values

    def imitation_loss(self, images, instructions, proprio, actions, step_valid, settings):
        tokens = torch.from_numpy(np.clip((actions + 1) * 127.5, 0, 255).astype(np.uint8)).flatten(1)
        mask = torch.from_numpy(step_valid).repeat_interleave(self.num_actions, dim=-1)
        distribution, _ = self(images, instructions, proprio, 1.0)
        return imitation_loss(distribution.logits, tokens, mask, settings.label_smoothing_bins)

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        return (tokens.reshape(len(tokens), -1, self.num_actions) / 127.5 - 1).astype(np.float32)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        folder.mkdir()
        write_weights(folder, named_tensors or self.module.state_dict().items())
        (folder / "config.json").write_text("{}")

    def stacks(self) -> list[list[nn.Module]]:
        return [list(self.module.blocks)]

    def frozen_names(self) -> set[str]:
        return {"unused.weight", "unused.bias"}

    @classmethod
    def from_folder(cls, folder: Path, files: WeightFiles, run: RunConfig | None) -> TinyPolicy:
        raise NotImplementedError
