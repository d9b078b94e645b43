"""Makes the rollout backend of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlrun.config.schema import RolloutBackendKind, RunConfig
from rlrun.rollout.backend import RolloutBackend, unsent_names


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
        from rlrun.rollout.sglang.backend import make_sglang

        return make_sglang(config, Path(policy_folder), progress)
    import torch

    from rlrun.policies.compilation import chosen_backend, prepare_blocks
    from rlrun.policies.opening import open_to_act
    from rlrun.policies.policy import torch_dtype
    from rlrun.rollout.hf import HFBackend

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = open_to_act(policy_folder, torch_dtype(config.rollout.precision), device, config)
    policy.use_attention(config.policy.attention, config.rollout.precision)
    prepare_blocks(policy, chosen_backend(config.policy.compile_backend, device, is_learner=False))
    return HFBackend(policy, unsent_names(policy, config), config.rollout.num_threads)
