"""Which backend a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from rlrun.config.errors import RunError
from rlrun.config.schema import Precision, RolloutBackendKind, RunConfig
from rlrun.rollout.backend import RolloutBackend


def make_backend(config: RunConfig, policy_folder: str | Path) -> RolloutBackend:
    """The backend of `rollout.backend`, on an accelerator if this process has one; weights still have to be applied."""
    if config.evaluation.server is not None:
        from rlrun.rollout.remote import RemoteBackend

        return RemoteBackend(config)
    if config.rollout.backend is not RolloutBackendKind.hf:
        raise RunError(
            "This version of rlrun has no SGLang backend.",
            key="rollout.backend",
            value=config.rollout.backend.value,
            remedy="Set rollout.backend=hf.",
        )
    import torch

    from rlrun.policies.opening import open_policy
    from rlrun.rollout.hf import HFBackend

    torch.set_num_threads(config.rollout.num_threads)
    dtype = {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16}[config.rollout.precision]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return HFBackend(open_policy(policy_folder, dtype, device, config))
