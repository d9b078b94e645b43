"""A small pi0 or pi0.5 from scratch."""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.checkpoint import run_settings
from rlrun.policies.flow.model import FlowModel
from rlrun.policies.flow.settings import Trains
from rlrun.policies.lerobot.config import numbered
from rlrun.policies.lerobot.statistics import MODES, of_demonstrations
from rlrun.policies.pi.config import MODES as MODE_OF
from rlrun.policies.pi.description import new_config
from rlrun.policies.pi.network import PiNetwork
from rlrun.policies.pi.pictures import LEROBOT_PADDING
from rlrun.policies.pi.policy import PiPolicy
from rlrun.policies.pi.processor import BINS, PiProcessor, prompt_with_state
from rlrun.policies.pi.settings import PiSettings, StateInPrompt
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import word_tokenizer


def new_policy(config: RunConfig, task: DemonstratedTask) -> PiPolicy:
    """Return the policy, float32 on the CPU; the same arguments give the same weights.

    Its vocabulary is the words of the task's instructions and the numbers of the state.
    """
    own, tokenizer = config.policy.section(PiSettings), _tokenizer(task)
    num_proprio = task.num_proprio if config.policy.use_proprio else 0
    sizes = task.num_actions, task.num_proprio, task.cameras, tokenizer.get_vocab_size()
    network_config = new_config(config, *sizes)
    statistics = of_demonstrations(task.norm_stats, MODES[MODE_OF[network_config.type]])
    shown, padding = own.state_in_prompt or StateInPrompt.real, LEROBOT_PADDING
    processor = PiProcessor(network_config, tokenizer, statistics, num_proprio, shown, padding)
    of_processor = {"state_in_prompt": shown.name, "padding": padding, "cleans_prompt": False}
    settings = run_settings(config, own, task.num_actions, num_proprio, of_processor)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return PiPolicy(PiNetwork(network_config), processor, settings, Trains.everything)


def num_parameters(config: RunConfig, num_actions: int, num_proprio: int) -> int:
    """Count the parameters of a new policy on the meta device, which allocates no memory."""
    described, own = new_config(config, num_actions, num_proprio, numbered(1)), config.policy.section(PiSettings)
    heads = run_settings(config, own, num_actions, num_proprio).heads
    with torch.device("meta"):
        module = FlowModel(PiNetwork(described), heads, Trains.everything)
    return sum(parameter.numel() for parameter in module.parameters())


def _tokenizer(task: DemonstratedTask) -> Tokenizer:
    prompts = [prompt_with_state(text, np.zeros(0)) for text in task.instructions]
    numbers = map(str, range(-1, len(BINS)))
    return word_tokenizer([*task.instructions, *prompts, " ".join(numbers)])
