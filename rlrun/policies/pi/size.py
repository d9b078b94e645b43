"""The size of a pi0 or pi0.5, from the run's configuration and the files of its folder; without torch."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.size import described, flow_size, vision_stack
from rlrun.policies.pi.config import GemmaSizes, PiConfig, PiSizes
from rlrun.policies.pi.description import new_config
from rlrun.policies.pi.openpi import is_openpi, read_config
from rlrun.policies.pi.settings import PiSettings
from rlrun.policies.size import PolicySize, Stack

PUBLISHED_PARAMETERS = {"pi0": 3_238_048_528, "pi05": 3_353_433_872}  # without the heads over words


def policy_size(config: RunConfig, spaces: PlannedSpaces, num_parameters: int) -> PolicySize:
    """Return the size by `policy.path`, else by the settings of a new policy."""
    own = config.policy.section(PiSettings)
    network = pi_config(config, spaces)
    sizes, width, dims = network.sizes, network.sizes.expert.width, network.max_action_dim
    tokens = spaces.num_images * sizes.tokens_per_image + network.tokenizer_max_length
    projections = [(dims, width), (width, dims), (width, width)]
    projections += [(width, width)] if network.is_adaptive else [(2 * width, width), (network.max_state_dim, width)]
    modulation = 2 * 3 * (width + 1) * width if network.is_adaptive else 0
    stacks = (
        vision_stack(sizes.vision, spaces.num_images, "vision_tower"),
        _stack(sizes.language, tokens, "language_model"),
        _stack(sizes.expert, network.chunk_size + (not network.is_adaptive), "gemma_expert", modulation),
    )
    summary = 2 * sizes.language.width + network.max_state_dim
    return flow_size(
        config,
        own,
        spaces,
        num_parameters,
        stacks,
        projections,
        image_size=sizes.vision.image_size,
        summary_width=summary,
        chunk_size=network.chunk_size,
    )


def pi_config(config: RunConfig, spaces: PlannedSpaces) -> PiConfig:
    """Return the architecture; a folder that is not on this machine counts as the published one."""
    own = config.policy.section(PiSettings)
    if config.policy.path is None:
        return new_config(config, spaces.num_actions, spaces.num_proprio)
    found, own_sizes = described(config, "config.json"), described(config, "paligemma/config.json")
    sizes = PiSizes.of(own_sizes) if own_sizes else PiSizes()
    if is_openpi(found):
        return read_config(found, (), sizes, spaces)
    return PiConfig.of({"type": own.version.name} | found, sizes)


def _stack(sizes: GemmaSizes, num_tokens: int, part: str, modulation: int = 0) -> Stack:
    return Stack(
        sizes.width,
        sizes.mlp_dim,
        sizes.depth,
        num_tokens,
        part,
        is_gated=True,
        query_width=sizes.num_heads * sizes.head_dim,
        key_width=sizes.num_kv_heads * sizes.head_dim,
        modulation_parameters=modulation,
    )
