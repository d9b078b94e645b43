"""Inputs and actions of a pi folder by rlrun, for the observation of the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.folder import FlowParts
from rlrun.policies.pi.folder import LEROBOT_PADDING, read_folder
from rlrun.policies.pi.network import PiNetwork
from rlrun.policies.pi.policy import PiProcessor
from rlrun.policies.pi.spec import PiSettings, StateInPrompt
from rlrun.policies.weight_files import StoredWeights, WeightFiles, fill
from scripts.oracles.smolvla import CAMERAS, INSTRUCTION, NUM_ACTIONS, NUM_STATES, learned, observed

SPACES = PlannedSpaces(len(CAMERAS), NUM_STATES, NUM_ACTIONS)


def processor_of(stored: FlowParts) -> PiProcessor:
    """Return the processor as LeRobot 0.4 has it."""
    config, padded = stored.config, StateInPrompt.padded
    return PiProcessor(config, stored.tokenizer, stored.statistics, NUM_STATES, padded, LEROBOT_PADDING)


def inputs(processor: PiProcessor) -> tuple[Tensor, ...]:
    """Return the arguments of the network's prefix."""
    given = observed()
    sentences = [INSTRUCTION] * len(given["state"])
    return processor(given["pictures"], sentences, given["state"][:, :NUM_STATES], torch.device("cpu"))


@torch.no_grad()
def acted(folder: Path) -> np.ndarray:
    """Return float32 [B, T, actions] in simulator units."""
    files = WeightFiles(folder)
    stored = read_folder(folder, files, PiSettings(), SPACES)
    processor = processor_of(stored)
    with torch.device("meta"):
        network = PiNetwork(stored.config)
    fill(network, StoredWeights(files, {}, seed=0), "cpu")
    prefix, x = network.prefix(*inputs(processor)), torch.from_numpy(learned()["noise"])
    for step in range(stored.config.num_inference_steps):
        time = torch.full((len(x),), 1 - step / stored.config.num_inference_steps)
        x = x - network.velocity(x, time, prefix)[0] / stored.config.num_inference_steps
    return processor.denormalize(x[..., :NUM_ACTIONS].numpy())
