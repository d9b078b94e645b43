"""Makes the rollout backend of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.config.schema import Precision, RolloutBackendKind, RunConfig
from rlrun.rollout.backend import RolloutBackend

if TYPE_CHECKING:
    from rlrun.policies.policy import Policy


def make_backend(
    config: RunConfig, policy_folder: str | Path, progress: Callable[[], None] = lambda: None
) -> RolloutBackend:
    """Make the backend of `rollout.backend`, on an accelerator if this process has one. Weights must be applied later.

    progress: called at signs of progress while an engine starts, which takes minutes.
    """
    if config.evaluation.server is not None:
        from rlrun.rollout.remote import RemoteBackend

        return RemoteBackend(config)
    if config.rollout.backend is RolloutBackendKind.sglang:
        from rlrun.rollout.sglang.make import make_sglang

        return make_sglang(config, Path(policy_folder), progress)
    import torch

    from rlrun.policies.compilation import compile_policy
    from rlrun.policies.opening import open_to_act
    from rlrun.rollout.hf import HFBackend

    dtype = {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16}[config.rollout.precision]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = open_to_act(policy_folder, dtype, device, config)
    policy.use_attention(config.policy.attention, config.rollout.precision)
    compile_policy(policy, config.policy.compile_backend)
    return HFBackend(policy, unsent_names(policy, config), config.rollout.num_threads)


def unsent_names(policy: Policy, config: RunConfig) -> set[str]:
    """Return the module's names of weights that the actor never changes and therefore never sends."""
    from rlrun.policies.adapter_values import is_adapter_name, plain_name, unchanging_names

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
