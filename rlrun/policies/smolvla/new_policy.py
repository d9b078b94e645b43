"""A small SmolVLA from scratch, with the sizes of policy.smolvla."""

from __future__ import annotations

import numpy as np
import torch

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import num_cameras
from rlrun.policies.flow.flow_sde import FlowSde
from rlrun.policies.smolvla.config import ACTION, IMAGES, STATE, SmolVLAConfig, TextSizes, VisionSizes, VLMSizes
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.policy import SmolVLAPolicy
from rlrun.policies.smolvla.processor import SmolVLAProcessor
from rlrun.policies.smolvla.settings import SmolVLASettings
from rlrun.policies.smolvla.statistics import Normalizer, Statistics
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import word_tokenizer
from rlrun.policies.value_head import ValueHead

PADDED = 32  # dimensions of state and actions at least, as in released policies
TOKENS_PER_SIDE = 4  # of a picture's tokens, if the patches allow it
MLP_RATIO = 4  # of the vision tower
ASSUMED_WORDS = 64  # of the vocabulary, while the instructions are unknown


def new_policy(config: RunConfig, task: DemonstratedTask) -> SmolVLAPolicy:
    """Return the policy, float32 on the CPU; the same arguments give the same weights.

    Its vocabulary is the words of the task's instructions, which are all that it will get.
    """
    tokenizer = word_tokenizer(task.instructions)
    network_config = described(config, task.num_actions, task.num_proprio, tokenizer.get_vocab_size())
    own, num_proprio = config.policy.section(SmolVLASettings), task.num_proprio if config.policy.use_proprio else 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return SmolVLAPolicy(
            SmolVLANetwork(network_config),
            SmolVLAProcessor(network_config, tokenizer, _statistics(task), num_proprio),
            FlowSde(own.num_flow_steps, own.noise_level),
            config.policy.num_action_chunks,
            task.num_actions,
            list(config.policy.value_hidden_sizes),
            train_expert_only=False,
        )


def described(config: RunConfig, num_actions: int, num_proprio: int, vocab_size: int) -> SmolVLAConfig:
    """Return the architecture of a new policy."""
    own, size = config.policy.section(SmolVLASettings), config.env.image_size
    chunk, cameras = config.policy.num_action_chunks, range(1, num_cameras(config.env) + 1)
    picture = {"type": "VISUAL", "shape": [3, size, size]}
    state = {"type": "STATE", "shape": [num_proprio]}
    heads = own.llm_num_heads
    text = TextSizes(
        hidden_size=own.llm_hidden_size,
        intermediate_size=own.llm_intermediate_size,
        num_hidden_layers=own.llm_num_layers,
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=own.llm_hidden_size // heads,
        vocab_size=vocab_size,
    )
    vision = VisionSizes(
        hidden_size=own.vision_hidden_size,
        intermediate_size=MLP_RATIO * own.vision_hidden_size,
        num_hidden_layers=own.vision_num_layers,
        num_attention_heads=own.vision_num_heads,
        image_size=size,
        patch_size=own.patch_size,
    )
    scale = max(1, size // own.patch_size // TOKENS_PER_SIDE)
    return SmolVLAConfig(
        input_features={f"{IMAGES}.camera{i}": picture for i in cameras} | {STATE: state},
        output_features={ACTION: {"type": "ACTION", "shape": [num_actions]}},
        chunk_size=chunk,
        n_action_steps=chunk,
        max_state_dim=max(PADDED, num_proprio),
        max_action_dim=max(PADDED, num_actions),
        resize_imgs_with_padding=(size, size),
        num_steps=own.num_flow_steps,
        vlm_model_name="vlm",
        num_vlm_layers=own.llm_num_layers,
        expert_width_multiplier=own.expert_width_multiplier,
        vlm=VLMSizes(vision=vision, text=text, scale_factor=scale, fake_image_token_id=0, global_image_token_id=0),
    )


def num_parameters(config: RunConfig, num_actions: int, num_proprio: int) -> int:
    """Count the parameters of a new policy on the meta device, which allocates no memory."""
    described_network = described(config, num_actions, num_proprio, ASSUMED_WORDS)
    with torch.device("meta"):
        network = SmolVLANetwork(described_network)
        critic = ValueHead(2 * described_network.vlm.text.hidden_size, list(config.policy.value_hidden_sizes))
    return sum(parameter.numel() for module in (network, critic) for parameter in module.parameters())


def _statistics(task: DemonstratedTask) -> Statistics:
    def normalizer(name: str) -> Normalizer:
        found = task.norm_stats[name]
        return Normalizer(np.asarray(found["mean"], np.float32), np.asarray(found["std"], np.float32))

    return Statistics(state=normalizer("proprio"), action=normalizer("action"))
