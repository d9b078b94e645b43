"""Converts frames to the network's inputs, and actions between simulator units and the network's.

Shape legend: B rows, N images per row, H x W camera pixels, S x S pixels of the vision tower, L words,
C control steps, A action dimensions, P proprioception.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from rlrun.policies.smolvla.config import SmolVLAConfig
from rlrun.policies.smolvla.pictures import pixels
from rlrun.policies.smolvla.statistics import Statistics
from rlrun.system.errors import RunError

END_OF_PROMPT = "\n"  # LeRobot ends every instruction by it


class SmolVLAProcessor:
    """Prepares inputs at every use; words are cached by instruction."""

    def __init__(self, config: SmolVLAConfig, tokenizer: Tokenizer, statistics: Statistics, num_proprio: int):
        """num_proprio: P; 0: the state is zero, as the run does not use proprioception."""
        self.config, self.tokenizer, self.statistics = config, tokenizer, statistics
        self.num_proprio = num_proprio
        self._words: dict[str, list[int]] = {}

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, device: torch.device
    ) -> tuple[Tensor, ...]:
        """Return the arguments of `SmolVLANetwork.prefix`, on `device`.

        images: uint8 [B, N, H, W, 3]; instructions: B sentences; proprio: float32 [B, P]. Raises RunError for an
        instruction longer than the policy takes, and ValueError for another number of cameras or of proprioception.
        """
        cameras = self.config.cameras
        if cameras and images.shape[1] != len(cameras):
            raise ValueError(f"{images.shape[1]} images per row; the policy takes {len(cameras)} (env.cameras)")
        frames = torch.from_numpy(images).to(device)
        shown = torch.ones(images.shape[:2], dtype=torch.bool, device=device)
        tokens, token_masks = self._tokens(instructions)
        state = torch.from_numpy(self._state(proprio, len(images)))
        return (
            pixels(frames, self.config.vlm.vision.image_size),
            shown,
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(token_masks).to(device),
            state.to(device),
        )

    def normalized(self, actions: np.ndarray) -> np.ndarray:
        """Convert [B, C, A] in simulator units -> float32 in the network's."""
        return actions if self.statistics.action is None else self.statistics.action.normalize(actions)

    def physical(self, actions: np.ndarray) -> np.ndarray:
        """Convert [B, C, A] in the network's units -> float32 in simulator units."""
        return actions if self.statistics.action is None else self.statistics.action.denormalize(actions)

    def _tokens(self, instructions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return int64 and bool [B, L]: words, padded on the right to the longest of the batch."""
        rows = [self._words_of(text) for text in instructions]
        length = max(map(len, rows))
        if self.config.pad_language_to == "max_length":
            length = self.config.tokenizer_max_length
        tokens, mask = np.zeros((len(rows), length), np.int64), np.zeros((len(rows), length), bool)
        for row, words in enumerate(rows):
            tokens[row, : len(words)], mask[row, : len(words)] = words, True
        return tokens, mask

    def _words_of(self, instruction: str) -> list[int]:
        if instruction not in self._words:
            words = self.tokenizer.encode(instruction + END_OF_PROMPT).ids
            if len(words) > self.config.tokenizer_max_length:
                raise RunError(
                    f"The instruction {instruction!r} has {len(words)} tokens.",
                    key="env.instruction",
                    value=instruction,
                    cause=f"The policy takes {self.config.tokenizer_max_length} (tokenizer_max_length in config.json).",
                    remedy="Shorten the instruction.",
                    row="prompt-too-long",
                )
            self._words[instruction] = words
        return self._words[instruction]

    def _state(self, proprio: np.ndarray, num_rows: int) -> np.ndarray:
        """Return float32 [B, max_state_dim]: normalised, padded with zeros."""
        state = np.zeros((num_rows, self.config.max_state_dim), np.float32)
        if not self.num_proprio:
            return state
        if proprio.shape != (num_rows, self.num_proprio):
            raise ValueError(
                f"proprioception: got {proprio.shape}, the policy takes [{num_rows}, {self.num_proprio}] (env.proprio)"
            )
        own = self.statistics.state
        state[:, : self.num_proprio] = proprio if own is None else own.normalize(proprio)
        return state
