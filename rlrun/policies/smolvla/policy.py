"""SmolVLA behind the policy interface."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.lerobot_config import Standardization, numbered, of_demonstrations
from rlrun.policies.flow.model import FlowModel
from rlrun.policies.flow.opening import FlowFolder
from rlrun.policies.flow.policy import FlowPolicy, RunSettings, run_settings
from rlrun.policies.flow.processor import FlowProcessor, ended
from rlrun.policies.flow.settings import PatchPositions, Trains
from rlrun.policies.smolvla.config import SmolVLAConfig
from rlrun.policies.smolvla.folder import read_folder, write_folder
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.settings import SmolVLASettings, new_config
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import word_tokenizer


def pixels(images: Tensor, size: int | None) -> Tensor:
    """Convert uint8 [B, N, H, W, 3] -> float32 [B, N, 3, size, size], on the device of the images.

    size: pixels per side; None: no resizing. Padding is black (-1). Bilinear without antialiasing, as in LeRobot.
    """
    x = images.flatten(0, 1).permute(0, 3, 1, 2).to(torch.float32) / 255.0
    height, width = x.shape[2:]
    if size is not None and (height, width) != (size, size):
        ratio = max(height, width) / size
        inner = (int(height / ratio), int(width / ratio))
        x = F.interpolate(x, size=inner, mode="bilinear", align_corners=False)
        x = F.pad(x, (size - inner[1], 0, size - inner[0], 0))
    return (x * 2.0 - 1.0).unflatten(0, images.shape[:2])


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


class SmolVLAPolicy(FlowPolicy):
    """The network, its critic and its processor."""

    processor: SmolVLAProcessor
    expert_parts = ("vlm_with_expert.lm_expert.", "action_in_proj.", "action_out_proj.", "action_time_mlp_")
    unread_parts = ("model.vlm_with_expert.vlm.lm_head.",)

    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        processor = self.processor
        write_folder(folder, processor.config, processor.tokenizer, processor.statistics, named_tensors)


def new_policy(config: RunConfig, task: DemonstratedTask) -> SmolVLAPolicy:
    """Return the policy, float32 on the CPU; the same arguments give the same weights.

    Its vocabulary is the words of the task's instructions, which are all that it will get.
    """
    tokenizer = word_tokenizer(task.instructions)
    sizes = task.num_actions, task.num_proprio, task.cameras, tokenizer.get_vocab_size()
    network_config = new_config(config, *sizes)
    positions = {"patch_positions": network_config.patch_positions.name}
    own, num_proprio = config.policy.section(SmolVLASettings), task.num_proprio if config.policy.use_proprio else 0
    processor = SmolVLAProcessor(
        network_config, tokenizer, of_demonstrations(task.norm_stats, Standardization), num_proprio
    )
    settings = run_settings(config, own, task.num_actions, num_proprio, positions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return SmolVLAPolicy(SmolVLANetwork(network_config), processor, settings, Trains.everything)


def num_parameters(config: RunConfig, num_actions: int, num_proprio: int) -> int:
    """Count the parameters of a new policy on the meta device, which allocates no memory."""
    described, own = new_config(config, num_actions, num_proprio, numbered(1)), config.policy.section(SmolVLASettings)
    heads = run_settings(config, own, num_actions, num_proprio).heads
    with torch.device("meta"):
        module = FlowModel(SmolVLANetwork(described), heads, Trains.everything)
    return sum(parameter.numel() for parameter in module.parameters())


def smolvla_in(folder: Path, run: RunConfig | None) -> FlowFolder[SmolVLAPolicy]:
    """Read all but the weights. Raises RunError that names what is missing or does not fit."""
    own: SmolVLASettings = SmolVLASettings() if run is None else run.policy.section(SmolVLASettings)
    stored = read_folder(folder, None if own.tokenizer_path is None else Path(own.tokenizer_path))

    def new(settings: RunSettings, trains: Trains) -> SmolVLAPolicy:
        said = PatchPositions[settings.processor.get("patch_positions", PatchPositions.exact.name)]
        positions = own.patch_positions or said
        settings = replace(settings, processor={"patch_positions": positions.name})
        config = stored.config.with_(patch_positions=positions)
        processor = SmolVLAProcessor(config, stored.tokenizer, stored.statistics, settings.num_proprio)
        return SmolVLAPolicy(SmolVLANetwork(config), processor, settings, trains)

    return FlowFolder(folder, stored.config, stored.weights, own, new)
