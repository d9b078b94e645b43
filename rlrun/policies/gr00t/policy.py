"""GR00T N1.7 behind the policy interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.folder import FlowParts, RunSettings
from rlrun.policies.flow.lerobot_config import Statistics
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.flow.processor import FlowProcessor
from rlrun.policies.flow.spec import FlowSettings, Trains
from rlrun.policies.gr00t.config import SIGN_OF_GRIPPER, Gr00tConfig
from rlrun.policies.gr00t.folder import read_folder, write_folder
from rlrun.policies.gr00t.network import Gr00tNetwork
from rlrun.policies.gr00t.pictures import pixels
from rlrun.policies.gr00t.processors import of_demonstrations
from rlrun.policies.gr00t.prompt import IMAGE_TOKEN, assumed_conversation, new_tokenizer, prompt
from rlrun.policies.gr00t.spec import Gr00tSettings, gr00t_config, new_config
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.weight_files import WeightFiles


class Gr00tProcessor(FlowProcessor):
    """The prompt is a conversation with pictures; the state is a token of the action head."""

    config: Gr00tConfig

    def pixels(self, images: Tensor) -> Tensor:
        return pixels(images, self.config.pictures)

    def prompt(self, instruction: str, state: np.ndarray) -> str:
        config = self.config
        return prompt(instruction, len(config.cameras), config.tokens_per_image, config.formalize_language)

    def denormalize(self, actions: np.ndarray) -> np.ndarray:
        """As all flow policies; where the folder says so, the last number, a gripper's 0 … 1, becomes 1 or -1."""
        denormalized = super().denormalize(actions)
        if self.config.action_decode_transform == SIGN_OF_GRIPPER:
            denormalized[..., -1] = -np.sign(2.0 * denormalized[..., -1] - 1.0)
        return denormalized

    def as_planned(self, actions: np.ndarray) -> np.ndarray:
        """The inverse of `denormalize`."""
        if self.config.action_decode_transform != SIGN_OF_GRIPPER:
            return super().as_planned(actions)
        planned = actions.copy()
        planned[..., -1] = (1.0 - planned[..., -1]) / 2.0
        return super().as_planned(planned)


class Gr00tPolicy(FlowPolicy):
    """GR00T, its heads and its processor."""

    processor: Gr00tProcessor
    section = Gr00tSettings
    expert_parts = ("action_head.",)
    unread_parts = ("backbone.model.model.language_model.norm.",)

    @classmethod
    def read_parts(cls, folder: Path, files: WeightFiles, settings: FlowSettings, run: RunConfig | None) -> FlowParts:
        return read_folder(folder, files, None if settings.tokenizer_path is None else Path(settings.tokenizer_path))

    @classmethod
    def begin(cls, config: RunConfig, task: DemonstratedTask) -> FlowParts:
        """The vocabulary is the words of the task's instructions, and the tokens of the conversation."""
        tokenizer = new_tokenizer(task.instructions)
        picture = tokenizer.token_to_id(IMAGE_TOKEN)
        assert picture is not None
        sizes = task.num_actions, task.num_proprio, task.cameras, tokenizer.get_vocab_size()
        architecture = new_config(config, *sizes, picture)
        return FlowParts(architecture, tokenizer, of_demonstrations(task.norm_stats), {})

    @classmethod
    def published_parts(cls, config: RunConfig, spaces: PlannedSpaces) -> FlowParts:
        return FlowParts(gr00t_config(config, spaces), assumed_conversation(), Statistics(), {})

    @classmethod
    def processor_choices(cls, settings: FlowSettings) -> dict[str, Any]:
        return {}

    @classmethod
    def assemble(cls, parts: FlowParts, settings: RunSettings, trains: Trains) -> Gr00tPolicy:
        processor = Gr00tProcessor(parts.config, parts.tokenizer, parts.statistics, settings.num_proprio)
        return cls(Gr00tNetwork(parts.config), processor, settings, trains)

    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        processor = self.processor
        write_folder(folder, processor.config, processor.tokenizer, processor.statistics, named_tensors)

    def stacks(self) -> list[list[nn.Module]]:
        network: Any = self.module.network
        vision, vlm, expert = super().stacks()
        return [vision, vlm, network.feature_layers(), expert]
