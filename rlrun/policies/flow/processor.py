"""Converts frames to a flow network's inputs, and actions between simulator units and the network's.

Shape legend: B rows, N images per row, H x W camera pixels, S x S pixels of the vision tower, L words,
C control steps, A action dimensions, P proprioception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from rlrun.policies.flow.lerobot_config import LeRobotConfig, Statistics
from rlrun.policies.upload import uploaded
from rlrun.system.errors import RunError

CACHED_PROMPTS = 1024


class FlowProcessor(ABC):
    """Prepares inputs at every use; a kind of policy adds the resizing of pictures and the prompt."""

    def __init__(self, config: LeRobotConfig, tokenizer: Tokenizer, statistics: Statistics, num_proprio: int):
        """num_proprio: P; 0: the state is zero, as the run does not use proprioception."""
        self.config = config
        self.tokenizer = tokenizer
        self.statistics = statistics
        self.num_proprio = num_proprio
        self._ids = lru_cache(CACHED_PROMPTS)(self._encoded)

    @abstractmethod
    def pixels(self, images: Tensor) -> Tensor:
        """Convert uint8 [B, N, H, W, 3] -> float32 [B, N, 3, S, S] in [-1, 1], on the device of the images."""

    @abstractmethod
    def prompt(self, instruction: str, state: np.ndarray) -> str:
        """Return the text of a row. state: float32 [P], normalized."""

    @property
    def num_words(self) -> int | None:
        """To how many tokens prompts are padded; None: to the longest of the batch."""
        return None

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, device: torch.device
    ) -> tuple[Tensor, ...]:
        """Return the arguments of the network's `prefix`, on `device`.

        images: uint8 [B, N, H, W, 3]; instructions: B sentences; proprio: float32 [B, P]. Raises RunError for an
        instruction longer than the policy takes, and ValueError for another number of cameras or of proprioception.
        """
        cameras = self.config.cameras
        if cameras and images.shape[1] != len(cameras):
            raise ValueError(f"{images.shape[1]} images per row; the policy takes {len(cameras)}")
        shown = torch.ones(images.shape[:2], dtype=torch.bool, device=device)
        state = self._state(proprio, len(images))
        tokens, token_masks = self._tokens(instructions, state[:, : self.num_proprio])
        arrays = (images, tokens, token_masks, state)
        pixels, *rest = uploaded([torch.from_numpy(array) for array in arrays], device)
        return (self.pixels(pixels), shown, *rest)

    def normalize(self, actions: np.ndarray) -> np.ndarray:
        """Convert [B, C, A] in simulator units -> float32 in the network's."""
        return actions if self.statistics.action is None else self.statistics.action.normalize(actions)

    def denormalize(self, actions: np.ndarray) -> np.ndarray:
        """Convert [B, C, A] in the network's units -> float32 in simulator units."""
        return actions if self.statistics.action is None else self.statistics.action.denormalize(actions)

    def as_planned(self, actions: np.ndarray) -> np.ndarray:
        """Convert actions [B, C, A] in simulator units -> float32 in the network's: the inverse of `denormalize`."""
        return self.normalize(actions)

    def _tokens(self, instructions: Sequence[str], states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return int64 and bool [B, L]: words, padded on the right."""
        rows = [self._ids(self.prompt(text, state)) for text, state in zip(instructions, states, strict=True)]
        length = self.num_words or max(map(len, rows))
        tokens = np.zeros((len(rows), length), np.int64)
        mask = np.zeros((len(rows), length), bool)
        for row, words in enumerate(rows):
            tokens[row, : len(words)] = words
            mask[row, : len(words)] = True
        return tokens, mask

    def _encoded(self, prompt: str) -> list[int]:
        encoding = self.tokenizer.encode(prompt)
        # a tokenizer that was saved after use pads; only words count here
        words = [word for word, is_word in zip(encoding.ids, encoding.attention_mask, strict=True) if is_word]
        if len(words) > self.config.tokenizer_max_length:
            raise RunError(
                f"The prompt {prompt!r} has {len(words)} tokens.",
                key="env.instruction",
                value=prompt,
                cause=f"The policy takes {self.config.tokenizer_max_length} (tokenizer_max_length in config.json).",
                remedy="Shorten the instruction.",
            )
        return words

    def _state(self, proprio: np.ndarray, num_rows: int) -> np.ndarray:
        """Return float32 [B, max_state_dim]: normalized, padded with zeros."""
        state = np.zeros((num_rows, self.config.max_state_dim), np.float32)
        if not self.num_proprio:
            return state
        if proprio.shape != (num_rows, self.num_proprio):
            raise ValueError(f"proprioception: got {proprio.shape}, the policy takes [{num_rows}, {self.num_proprio}]")
        normalizer = self.statistics.state
        state[:, : self.num_proprio] = proprio if normalizer is None else normalizer.normalize(proprio)
        return state


def resize_to(images: Tensor, size: int) -> Tensor:
    """Convert uint8 [B, N, H, W, 3] -> float32 [B*N, 3, h, w] in [0, 1], whose longer side has `size` pixels.

    Bilinear without antialiasing, as in LeRobot.
    """
    x = images.flatten(0, 1).permute(0, 3, 1, 2).to(torch.float32) / 255.0
    height, width = x.shape[2:]
    if (height, width) == (size, size):
        return x
    ratio = max(height, width) / size
    return F.interpolate(x, size=(int(height / ratio), int(width / ratio)), mode="bilinear", align_corners=False)


def with_newline(instruction: str) -> str:
    """Return the instruction with a line break at its end, as LeRobot gives it to SmolVLA and pi0."""
    return instruction if instruction.endswith("\n") else f"{instruction}\n"
