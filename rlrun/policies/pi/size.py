"""The size of a pi0 or pi0.5, from the run's configuration and the files of its folder; without torch."""

from __future__ import annotations

from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.size import NetworkSize, described, flow_size, vision_stack
from rlrun.policies.lerobot.config import numbered
from rlrun.policies.pi.config import EMBEDDINGS, HEADS, GemmaSizes, PiConfig, PiSizes
from rlrun.policies.pi.description import new_config
from rlrun.policies.pi.openpi import full_name, is_openpi, kind_of, read_config
from rlrun.policies.pi.settings import PiSettings
from rlrun.policies.size import PolicySize, Stack
from rlrun.policies.weight_headers import named_parameters_in

PUBLISHED_PARAMETERS = {"pi0": 3_238_048_528, "pi05": 3_353_433_872}  # without the heads over words


def policy_size(config: RunConfig, spaces: PlannedSpaces, num_parameters: int) -> PolicySize:
    """Return the size by `policy.path`, else by the settings of a new policy."""
    network = pi_config(config, spaces)
    num_parameters -= _unread_parameters(config)
    return flow_size(
        config, config.policy.section(PiSettings), spaces, num_parameters, _sizes(network, spaces.num_images)
    )


def _sizes(network: PiConfig, num_images: int) -> NetworkSize:
    sizes, width, dims = network.sizes, network.sizes.expert.width, network.max_action_dim
    tokens = num_images * sizes.tokens_per_image + network.tokenizer_max_length
    with_state = [] if network.is_adaptive else [(network.max_state_dim, width)]
    with_time = [(width, width)] if network.is_adaptive else [(2 * width, width)]
    modulation = 2 * 3 * (width + 1) * width if network.is_adaptive else 0
    return NetworkSize(
        vision=sizes.vision,
        stacks=(
            vision_stack(sizes.vision, num_images, "vision_tower"),
            _stack(sizes.language, tokens, "language_model"),
            _stack(sizes.expert, network.chunk_size + len(with_state), "gemma_expert", modulation),
        ),
        projections=((dims, width), (width, dims), (width, width), *with_time, *with_state),
        summary_width=2 * sizes.language.width + network.max_state_dim,
        chunk_size=network.chunk_size,
    )


def pi_config(config: RunConfig, spaces: PlannedSpaces) -> PiConfig:
    """Return the architecture; a folder that is not on this machine counts as the published one."""
    own = config.policy.section(PiSettings)
    if config.policy.path is None:
        return new_config(config, spaces.num_actions, spaces.num_proprio, numbered(spaces.num_images))
    found, own_sizes = described(config, "config.json"), described(config, "paligemma/config.json")
    sizes = PiSizes.of(own_sizes) if own_sizes else PiSizes()
    if is_openpi(found):
        stored = _stored_parameters(config)
        return read_config(found, kind_of(stored) if stored else own.version.name, sizes, spaces)
    return PiConfig.of({"type": own.version.name} | found, sizes)


def _unread_parameters(config: RunConfig) -> int:
    """Return the parameters in the files of `policy.path` that the network does not have: the heads over words."""
    stored = _stored_parameters(config)
    of_paligemma, of_expert = HEADS
    # files hold the embeddings under one name or under both
    doubled = stored.get(of_paligemma, 0) if EMBEDDINGS in stored else 0
    return doubled + stored.get(of_expert, 0)


def _stored_parameters(config: RunConfig) -> dict[str, int]:
    """Return the parameters in the files of `policy.path` by the names of PiNetwork; {}: there are no files."""
    if config.policy.path is None:
        return {}
    found = named_parameters_in(Path(config.policy.path))
    return {full_name(name): count for name, count in found.items()}


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
