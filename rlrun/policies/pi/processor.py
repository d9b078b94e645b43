"""Prepares what pi0 and pi0.5 see."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from rlrun.policies.flow.processor import FlowProcessor, ended
from rlrun.policies.lerobot.statistics import Statistics
from rlrun.policies.pi.config import PiConfig
from rlrun.policies.pi.pictures import pixels
from rlrun.policies.pi.settings import StateInPrompt

BINS = np.linspace(-1, 1, 256 + 1)[:-1]  # of the numbers of the state in the prompt


class PiProcessor(FlowProcessor):
    """pi0's expert reads the state; pi0.5 has it in the prompt, as numbers of 256 bins."""

    config: PiConfig

    def __init__(
        self,
        config: PiConfig,
        tokenizer: Tokenizer,
        statistics: Statistics,
        num_proprio: int,
        state_in_prompt: StateInPrompt,
        padding: float,
        cleans_prompt: bool = False,
    ):
        """state_in_prompt: of pi0.5. padding: the value beside a picture that is no square.

        cleans_prompt: of pi0, whether an instruction is `cleaned` as in openpi; LeRobot's pi0 takes it as it is, and
        pi0.5 always has it cleaned.
        """
        super().__init__(config, tokenizer, statistics, num_proprio)
        self.state_in_prompt, self.padding, self.cleans_prompt = state_in_prompt, padding, cleans_prompt

    def pixels(self, images: Tensor) -> Tensor:
        return pixels(images, self.config.sizes.vision.image_size, self.padding)

    def prompt(self, instruction: str, state: np.ndarray) -> str:
        if self.config.type == "pi05" and self.state_in_prompt is not StateInPrompt.none:
            return prompt_with_state(instruction, self._shown(state))
        if self.config.type == "pi05" or self.cleans_prompt:
            return f"{cleaned(instruction)}\n"
        return ended(instruction)

    def _shown(self, state: np.ndarray) -> np.ndarray:
        if self.state_in_prompt is StateInPrompt.padded:
            return np.pad(state, (0, self.config.max_state_dim - len(state)))
        return state


def cleaned(instruction: str) -> str:
    """Return the instruction on one line without underscores, as openpi takes it, and LeRobot for pi0.5."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def prompt_with_state(instruction: str, state: np.ndarray) -> str:
    """Return pi0.5's prompt. state: float [P], normalized to -1 … 1.

    Example: prompt_with_state("open it", [-1, 0.5]) == "Task: open it, State: 0 192;\\nAction: ".
    """
    numbers = " ".join(map(str, np.digitize(state, bins=BINS) - 1))
    return f"Task: {cleaned(instruction)}, State: {numbers};\nAction: "
