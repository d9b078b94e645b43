"""The spec of OpenVLA-OFT, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.checks import Faults
from rlrun.config.schema import RunConfig
from rlrun.policies.openvla_oft.settings import OpenVLAOFTSettings, num_parameters, policy_size
from rlrun.policies.spec import DemonstratedTask, PolicySpec, check_head_sizes

if TYPE_CHECKING:
    import torch

    from rlrun.policies.openvla_oft.policy import VlaPolicy
    from rlrun.policies.weight_files import StoredWeights

ADAPTABLE_PARTS = ("language_model", "vision_backbone", "projector", "proprio_projector", "value_head")


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("model_type") == "openvla"


def _open(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> VlaPolicy:
    from rlrun.policies.openvla_oft.policy import open_vla  # importing transformers takes seconds

    return open_vla(folder, dtype, device, run)


def _open_to_shard(folder: Path, run: RunConfig) -> tuple[VlaPolicy, StoredWeights]:
    from rlrun.policies.openvla_oft.policy import open_vla_to_shard

    return open_vla_to_shard(folder, run)


def _open_with_adapters(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig) -> VlaPolicy:
    from rlrun.policies.openvla_oft.policy import open_vla_with_adapters

    return open_vla_with_adapters(folder, dtype, device, run)


def _from_demonstrations(config: RunConfig, task: DemonstratedTask) -> VlaPolicy:
    from rlrun.policies.openvla_oft.policy import VlaPolicy as Class
    from rlrun.policies.openvla_oft.policy import new_policy

    return Class(*new_policy(config.policy, config.env, task, config.seed))


def check_sizes(config: RunConfig) -> Faults:
    """Check the sizes of a new policy, see `check_head_sizes`."""
    return check_head_sizes(config, "policy.openvla_oft.", config.policy.section(OpenVLAOFTSettings))


SPEC = PolicySpec(
    name="openvla_oft",
    section=OpenVLAOFTSettings,
    recognizes=_recognizes,
    open=_open,
    open_to_shard=_open_to_shard,
    open_with_adapters=_open_with_adapters,
    from_demonstrations=_from_demonstrations,
    check=check_sizes,
    observes=("images", "proprio", "instruction"),
    backends=("hf", "sglang"),
    has_attention=True,
    parts=(*ADAPTABLE_PARTS, "action_queries"),
    adaptable_parts=ADAPTABLE_PARTS,
    num_parameters=num_parameters,
    size=policy_size,
)
