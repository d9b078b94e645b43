"""A small SmolVLA from scratch."""

from __future__ import annotations

import torch

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.checkpoint import run_settings
from rlrun.policies.flow.model import FlowModel
from rlrun.policies.flow.settings import Trains
from rlrun.policies.lerobot.config import numbered
from rlrun.policies.lerobot.statistics import Standardization, of_demonstrations
from rlrun.policies.smolvla.description import new_config
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.policy import SmolVLAPolicy
from rlrun.policies.smolvla.processor import SmolVLAProcessor
from rlrun.policies.smolvla.settings import SmolVLASettings
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import word_tokenizer


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
