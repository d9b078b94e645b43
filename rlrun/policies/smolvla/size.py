"""The size of a SmolVLA, from the run's configuration and the files of its folder; without torch."""

from __future__ import annotations

from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.size import NetworkSize, described, flow_size, vision_stack
from rlrun.policies.lerobot.config import numbered
from rlrun.policies.size import PolicySize, Stack
from rlrun.policies.smolvla.config import SmolVLAConfig, VLMSizes
from rlrun.policies.smolvla.description import new_config
from rlrun.policies.smolvla.settings import SmolVLASettings


def policy_size(config: RunConfig, spaces: PlannedSpaces, num_parameters: int) -> PolicySize:
    """Return the size by `policy.path`, else by the settings of a new policy."""
    network = _config(config, spaces)
    return flow_size(
        config, config.policy.section(SmolVLASettings), spaces, num_parameters, _sizes(network, spaces.num_images)
    )


def _sizes(network: SmolVLAConfig, num_images: int) -> NetworkSize:
    text, chunk, width, dims = network.vlm.text, network.chunk_size, network.expert_width, network.max_action_dim
    attention: dict[str, Any] = {
        "query_width": text.num_attention_heads * text.head_dim,
        "key_width": text.num_key_value_heads * text.head_dim,
    }
    tokens, layers = network.prefix_tokens(num_images, network.tokenizer_max_length), network.num_layers
    return NetworkSize(
        vision=network.vlm.vision,
        stacks=(
            vision_stack(network.vlm.vision, num_images, "vision_model"),
            Stack(text.hidden_size, text.intermediate_size, layers, tokens, "text_model", is_gated=True, **attention),
            Stack(width, network.expert_inner, layers, chunk, "lm_expert", is_gated=True, **attention),
        ),
        projections=((dims, width), (width, dims), (2 * width, width), (width, width)),
        summary_width=2 * text.hidden_size,
        chunk_size=chunk,
        dead_parameters=text.vocab_size * text.hidden_size,
    )


def _config(config: RunConfig, spaces: PlannedSpaces) -> SmolVLAConfig:
    """Return the architecture; a folder that is not on this machine counts as the published one."""
    if config.policy.path is None:
        return new_config(config, spaces.num_actions, spaces.num_proprio, numbered(spaces.num_images))
    vlm = VLMSizes.of(described(config, "vlm/config.json"))
    return SmolVLAConfig.of(described(config, "config.json"), vlm)
