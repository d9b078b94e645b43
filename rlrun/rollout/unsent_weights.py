"""Which weights of a policy are never sent to rollout workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.config.schema import RunConfig

if TYPE_CHECKING:
    from rlrun.policies.policy import Policy


def unsent_names(policy: Policy, config: RunConfig) -> set[str]:
    """The module's names of weights that stay as the policy folder has them, whatever the actor learns."""
    from rlrun.policies.adapters import is_adapter_name, plain_name, unchanging_names

    lora, dead = config.actor.lora, policy.frozen_names()
    if lora.rank == 0:
        return dead
    if lora.is_sent_apart:
        base = {name: plain_name(name) for name in policy.module.state_dict() if not is_adapter_name(name)}
        unchanging = unchanging_names(base.values(), set(), dead, lora)
        return {name for name, plain in base.items() if plain in unchanging}
    from rlrun.policies.adapters import adapted_layers  # peft takes seconds to import

    adapted = {f"{name}.weight" for name in adapted_layers(policy.module, lora, dead)}
    return unchanging_names((name for name, _ in policy.module.named_parameters()), adapted, dead, lora)
