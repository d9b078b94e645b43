"""SmolVLA behind the policy interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.folder import FlowParts, RunSettings
from rlrun.policies.flow.lerobot_config import Standardization, Statistics, of_demonstrations
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.flow.processor import FlowProcessor, resize_to, with_newline
from rlrun.policies.flow.spec import FlowSettings, PatchPositions, Trains
from rlrun.policies.smolvla.config import SmolVLAConfig
from rlrun.policies.smolvla.folder import PROCESSOR_SETTINGS, read_folder, write_folder
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.spec import SmolVLASettings, new_config, smolvla_config
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import assumed_tokenizer, word_tokenizer
from rlrun.policies.weight_files import WeightFiles


def pixels(images: Tensor, size: int) -> Tensor:
    """Convert uint8 [B, N, H, W, 3] -> float32 [B, N, 3, size, size] in [-1, 1], on the device of the images.

    size: pixels per side. A picture stays at the right and at the bottom, beside black, as in LeRobot.
    """
    x = resize_to(images, size)
    height, width = x.shape[2:]
    x = F.pad(x, (size - width, 0, size - height, 0))
    return (x * 2.0 - 1.0).unflatten(0, images.shape[:2])


class SmolVLAProcessor(FlowProcessor):
    """The state is a token of its own, so that the prompt is the instruction."""

    config: SmolVLAConfig

    def pixels(self, images: Tensor) -> Tensor:
        return pixels(images, self.config.vlm.vision.image_size)

    def prompt(self, instruction: str, state: np.ndarray) -> str:
        return with_newline(instruction)

    @property
    def num_words(self) -> int | None:
        return self.config.tokenizer_max_length if self.config.pad_language_to == "max_length" else None


class SmolVLAPolicy(FlowPolicy):
    """SmolVLA, its heads and its processor."""

    processor: SmolVLAProcessor
    section = SmolVLASettings
    expert_parts = ("vlm_with_expert.lm_expert.", "action_in_proj.", "action_out_proj.", "action_time_mlp_")
    unread_parts = ("model.vlm_with_expert.vlm.lm_head.",)

    @classmethod
    def read_parts(cls, folder: Path, files: WeightFiles, settings: FlowSettings, run: RunConfig | None) -> FlowParts:
        return read_folder(folder, files, None if settings.tokenizer_path is None else Path(settings.tokenizer_path))

    @classmethod
    def begin(cls, config: RunConfig, task: DemonstratedTask) -> FlowParts:
        """The vocabulary is the words of the task's instructions."""
        tokenizer = word_tokenizer(task.instructions)
        sizes = task.num_actions, task.num_proprio, task.cameras, tokenizer.get_vocab_size()
        statistics = of_demonstrations(task.norm_stats, Standardization)
        return FlowParts(new_config(config, *sizes), tokenizer, statistics, PROCESSOR_SETTINGS)

    @classmethod
    def published_parts(cls, config: RunConfig, spaces: PlannedSpaces) -> FlowParts:
        parts = smolvla_config(config, spaces), assumed_tokenizer(), Statistics()
        return FlowParts(*parts, PROCESSOR_SETTINGS)

    @classmethod
    def processor_choices(cls, settings: FlowSettings) -> dict[str, Any]:
        assert isinstance(settings, SmolVLASettings)
        return {} if settings.patch_positions is None else {"patch_positions": settings.patch_positions.name}

    @classmethod
    def assemble(cls, parts: FlowParts, settings: RunSettings, trains: Trains) -> SmolVLAPolicy:
        config = parts.config.with_(patch_positions=PatchPositions[settings.processor["patch_positions"]])
        processor = SmolVLAProcessor(config, parts.tokenizer, parts.statistics, settings.num_proprio)
        return cls(SmolVLANetwork(config), processor, settings, trains)

    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        processor = self.processor
        write_folder(folder, processor.config, processor.tokenizer, processor.statistics, named_tensors)
