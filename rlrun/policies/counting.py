"""Counts the parameters of a new policy on torch's meta device, which allocates no memory."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.data.messages import Spaces
from rlrun.policies.spec import PolicySpec


def counted(spec: PolicySpec, config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a policy that begins from scratch; 0 for other policies, whose count is unknown."""
    if spec.from_scratch is None:
        return 0
    import torch  # importing torch takes seconds: a plan only does so if a spec has no closed form

    num_actions = spaces.num_actions
    low, high = (-1.0,) * num_actions, (1.0,) * num_actions
    assumed = Spaces(num_actions, None, low, high, spaces.num_proprio, spaces.num_images)
    with torch.device("meta"):
        policy = spec.from_scratch(config, assumed)
    return sum(parameter.numel() for parameter in policy.module.parameters())
