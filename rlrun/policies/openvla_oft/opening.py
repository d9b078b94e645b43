"""Opens the folder of an OpenVLA-OFT as a policy: to act, to train in shards, or with its own adapters.

Importing this module imports transformers, which takes seconds: `rlrun.policies.opening` does so only for this kind.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from rlrun.config.schema import LoraConfig, RunConfig
from rlrun.policies.openvla_oft.checkpoint import find_policy, load_policy
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.policies.stored_weights import StoredWeights, fill


def open_vla(folder: Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig | None) -> VlaPolicy:
    """Open the whole policy on `device`."""
    return VlaPolicy(*load_policy(folder, dtype, device, run))


def open_vla_to_shard(folder: Path, run: RunConfig) -> tuple[VlaPolicy, StoredWeights]:
    """Open without memory, with the adapters of `actor.lora` if any, and with the weights that fill its shards."""
    stored = find_policy(folder, run)
    policy = VlaPolicy(stored.without_memory(), stored.processor)
    if run.actor.lora.rank:
        _add_adapters(policy, run.actor.lora)
    return policy, stored.weights


def open_vla_with_adapters(folder: Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig) -> VlaPolicy:
    """Open the whole policy on `device`, with adapters that change nothing until the first weights arrive."""
    stored = find_policy(folder, run)
    policy = VlaPolicy(stored.without_memory(), stored.processor)
    _add_adapters(policy, run.actor.lora)
    module: nn.Module = policy.module
    fill(module.to(dtype), stored.weights, device)
    policy.device = torch.device(device)
    return policy


def _add_adapters(policy: VlaPolicy, lora: LoraConfig) -> None:
    from rlrun.policies.adapters import add_adapters  # importing peft takes seconds

    add_adapters(policy, lora)
