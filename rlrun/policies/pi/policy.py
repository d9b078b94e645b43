"""pi0 and pi0.5 behind the policy interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces, simulator_spec
from rlrun.policies.flow.folder import FlowParts, RunSettings
from rlrun.policies.flow.lerobot_config import MODES, Statistics, of_demonstrations
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.flow.processor import FlowProcessor, with_newline
from rlrun.policies.flow.spec import FlowSettings, Trains
from rlrun.policies.pi.config import MODES as MODE_OF
from rlrun.policies.pi.config import PiConfig
from rlrun.policies.pi.folder import pixels, processor_settings, read_folder, write_folder
from rlrun.policies.pi.network import PiNetwork
from rlrun.policies.pi.spec import PiSettings, StateInPrompt, new_config, pi_config
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import assumed_tokenizer, word_tokenizer
from rlrun.policies.weight_files import WeightFiles

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

        cleans_prompt: of pi0, whether an instruction is cleaned as in openpi; LeRobot's pi0 takes it as it is, and
        pi0.5 always has it cleaned.
        """
        super().__init__(config, tokenizer, statistics, num_proprio)
        self.state_in_prompt = state_in_prompt
        self.padding = padding
        self.cleans_prompt = cleans_prompt

    def pixels(self, images: Tensor) -> Tensor:
        return pixels(images, self.config.sizes.vision.image_size, self.padding)

    def prompt(self, instruction: str, state: np.ndarray) -> str:
        if self.config.type == "pi05" and self.state_in_prompt is not StateInPrompt.none:
            return prompt_with_state(instruction, self._shown(state))
        if self.config.type == "pi05" or self.cleans_prompt:
            return f"{clean_instruction(instruction)}\n"
        return with_newline(instruction)

    def _shown(self, state: np.ndarray) -> np.ndarray:
        if self.state_in_prompt is StateInPrompt.padded:
            return np.pad(state, (0, self.config.max_state_dim - len(state)))
        return state


def clean_instruction(instruction: str) -> str:
    """Return the instruction on one line without underscores, as openpi takes it, and LeRobot for pi0.5."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def prompt_with_state(instruction: str, state: np.ndarray) -> str:
    """Return pi0.5's prompt. state: float [P], normalized to -1 … 1.

    Example: prompt_with_state("open it", [-1, 0.5]) == "Task: open it, State: 0 192;\\nAction: ".
    """
    numbers = " ".join(map(str, np.digitize(state, bins=BINS) - 1))
    return f"Task: {clean_instruction(instruction)}, State: {numbers};\nAction: "


class PiPolicy(FlowPolicy):
    """pi0 or pi0.5, its heads and its processor."""

    processor: PiProcessor
    section = PiSettings
    expert_parts = ("gemma_expert.", "action_in_proj.", "action_out_proj.", "time_mlp_", "state_proj.")

    @classmethod
    def read_parts(cls, folder: Path, files: WeightFiles, own: FlowSettings, run: RunConfig | None) -> FlowParts:
        assert isinstance(own, PiSettings)
        spaces = PlannedSpaces(0, 0, 0) if run is None else simulator_spec(run.env).world.planned_spaces(run.env)
        return read_folder(folder, files, own, spaces)

    @classmethod
    def begin(cls, config: RunConfig, task: DemonstratedTask) -> FlowParts:
        """The vocabulary is the words of the task's instructions and the numbers of the state."""
        tokenizer = _tokenizer(task)
        sizes = task.num_actions, task.num_proprio, task.cameras, tokenizer.get_vocab_size()
        architecture = new_config(config, *sizes)
        statistics = of_demonstrations(task.norm_stats, MODES[MODE_OF[architecture.type]])
        return FlowParts(architecture, tokenizer, statistics, processor_settings(is_openpi=False))

    @classmethod
    def published_parts(cls, config: RunConfig, spaces: PlannedSpaces) -> FlowParts:
        parts = pi_config(config, spaces), assumed_tokenizer(), Statistics()
        return FlowParts(*parts, processor_settings(is_openpi=False))

    @classmethod
    def processor_choices(cls, settings: FlowSettings) -> dict[str, Any]:
        assert isinstance(settings, PiSettings)
        return {} if settings.state_in_prompt is None else {"state_in_prompt": settings.state_in_prompt.name}

    @classmethod
    def assemble(cls, parts: FlowParts, settings: RunSettings, trains: Trains) -> PiPolicy:
        known = settings.processor
        processor = PiProcessor(
            parts.config,
            parts.tokenizer,
            parts.statistics,
            settings.num_proprio,
            StateInPrompt[known["state_in_prompt"]],
            known["padding"],
            known["cleans_prompt"],
        )
        return cls(PiNetwork(parts.config), processor, settings, trains)

    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        processor = self.processor
        described = (processor.config, processor.tokenizer, processor.statistics)
        write_folder(folder, *described, named_tensors, processor.state_in_prompt)


def _tokenizer(task: DemonstratedTask) -> Tokenizer:
    prompts = [prompt_with_state(text, np.zeros(0)) for text in task.instructions]
    numbers = map(str, range(-1, len(BINS)))
    return word_tokenizer([*task.instructions, *prompts, " ".join(numbers)])
