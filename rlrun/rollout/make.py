"""Makes the rollout backend of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlrun.config.schema import RolloutBackendKind, RunConfig
from rlrun.edges.spaces import Spaces
from rlrun.rollout.backend import RolloutBackend, unsent_names


def make_backend(
    config: RunConfig,
    policy_folder: str | Path,
    progress: Callable[[], None] = lambda: None,
    is_base_on_device: bool = True,
    world: Spaces | None = None,
) -> RolloutBackend:
    """Make the backend of `rollout.backend`, on an accelerator if this process has one. Weights must be applied later.

    progress: called at signs of progress while weights are read or an engine starts, which takes minutes, or while a
    policy server is awaited.
    is_base_on_device: whether the weights under adapters are kept there too, see `RunConfig.are_adapters_apart`; False:
    in host memory. world: of the simulators, for a policy server (`evaluation.server`).
    """
    if config.evaluation.server is not None:
        from rlrun.rollout.remote import RemoteBackend

        assert world is not None, "a policy server is only asked for running simulators"
        return RemoteBackend(config, world, progress)
    if config.rollout.backend is RolloutBackendKind.sglang:
        from rlrun.rollout.sglang.backend import make_sglang

        return make_sglang(config, Path(policy_folder), progress)
    import torch

    from rlrun.policies.compilation import chosen_backend, prepare_blocks
    from rlrun.policies.opening import open_policy
    from rlrun.policies.policy import torch_dtype
    from rlrun.rollout.adapted import adapted_weights
    from rlrun.rollout.continuation import Continuation
    from rlrun.rollout.hf import HFBackend

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = open_policy(policy_folder, torch_dtype(config.rollout.precision), device, config, progress=progress)
    policy.use_attention(config.policy.attention, config.rollout.precision)
    prepare_blocks(policy, chosen_backend(config.policy.compile_backend, device, is_learner=False))
    adapted = adapted_weights(policy, config, device if is_base_on_device else torch.device("cpu"))
    continuation = Continuation(policy, config) if config.evaluation.real_time_chunking.enable else None
    return HFBackend(policy, unsent_names(policy, config), config.rollout.num_threads, adapted, continuation)
