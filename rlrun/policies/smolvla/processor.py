"""Prepares what SmolVLA sees."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rlrun.policies.flow.processor import FlowProcessor, ended
from rlrun.policies.smolvla.config import SmolVLAConfig
from rlrun.policies.smolvla.pictures import pixels


class SmolVLAProcessor(FlowProcessor):
    """The state is a token of its own, so that the prompt is the instruction."""

    config: SmolVLAConfig

    def pixels(self, images: Tensor) -> Tensor:
        return pixels(images, self.config.vlm.vision.image_size)

    def prompt(self, instruction: str, state: np.ndarray) -> str:
        return ended(instruction)

    @property
    def num_words(self) -> int | None:
        return self.config.tokenizer_max_length if self.config.pad_language_to == "max_length" else None
