"""How large the policy of a run is, without building it: its kind's spec knows."""

from __future__ import annotations

from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.policies.base_folder import base_of, has_only_adapters
from rlrun.policies.counting import counted
from rlrun.policies.folder_kind import CONFIG_FILE, spec_of
from rlrun.policies.size import PolicySize
from rlrun.policies.spec import policy_spec
from rlrun.policies.weight_headers import parameters_in, readable

COMPARE = "Compare it with the config.json that its author published: a value was changed, or rlrun lacks this variant."


def policy_size(config: RunConfig, num_parameters: int) -> PolicySize:
    """num_parameters: as `count_parameters` gives it."""
    spec, spaces = policy_spec(config), simulator_spec(config.env).planned_spaces(config.env)
    if spec.size is not None:
        size = spec.size
        if config.policy.path is None:
            return size(config, spaces, num_parameters)
        folder = Path(config.policy.path)
        spec_of(folder, config)  # another kind's config.json is told as such
        return readable(folder / CONFIG_FILE, lambda: size(config, spaces, num_parameters), remedy=COMPARE)
    num_pixels = spaces.num_images * config.env.image_size**2 * 3
    return PolicySize(num_parameters, (), num_pixels, config.policy.num_action_chunks * spaces.num_actions)


def count_parameters(config: RunConfig) -> int:
    """Parameters of `policy.path`, from its safetensors headers; else those that a new policy will have."""
    if config.policy.path is not None:
        folder = Path(config.policy.path)
        found = parameters_in(base_of(folder) if has_only_adapters(folder) else folder)
        if found:
            return found
    spec, spaces = policy_spec(config), simulator_spec(config.env).planned_spaces(config.env)
    return spec.num_parameters(config, spaces) if spec.num_parameters is not None else counted(spec, config, spaces)
