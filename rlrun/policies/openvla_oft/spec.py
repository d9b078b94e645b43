"""The spec of OpenVLA-OFT, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.faults import Faults, not_multiple
from rlrun.config.schema import RunConfig
from rlrun.policies.openvla_oft.settings import OpenVLAOFTSettings
from rlrun.policies.openvla_oft.size import num_parameters, policy_size
from rlrun.policies.spec import DemonstratedTask, PolicySpec
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    import torch

    from rlrun.policies.openvla_oft.policy import VlaPolicy
    from rlrun.policies.stored_weights import StoredWeights

ADAPTABLE_PARTS = ("language_model", "vision_backbone", "projector", "proprio_projector", "value_head")


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("model_type") == "openvla"


def _open(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> VlaPolicy:
    from rlrun.policies.openvla_oft.opening import open_vla  # importing transformers takes seconds

    return open_vla(folder, dtype, device, run)


def _open_to_shard(folder: Path, run: RunConfig) -> tuple[VlaPolicy, StoredWeights]:
    from rlrun.policies.openvla_oft.opening import open_vla_to_shard

    return open_vla_to_shard(folder, run)


def _open_with_adapters(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig) -> VlaPolicy:
    from rlrun.policies.openvla_oft.opening import open_vla_with_adapters

    return open_vla_with_adapters(folder, dtype, device, run)


def _from_demonstrations(config: RunConfig, task: DemonstratedTask) -> VlaPolicy:
    from rlrun.policies.openvla_oft.new_policy import new_policy
    from rlrun.policies.openvla_oft.policy import VlaPolicy as Class

    return Class(*new_policy(config.policy, config.env, task, config.seed))


def check_sizes(config: RunConfig) -> Faults:
    """Check that patches divide the image, heads divide the hidden sizes, and rotary heads are even.

    A policy from a folder has its own sizes and is not checked.
    """
    own = config.policy.section(OpenVLAOFTSettings)
    if config.policy.path is not None:
        return
    section = "policy.openvla_oft."
    yield from not_multiple("env.image_size", config.env.image_size, section + "patch_size", own.patch_size)
    for part, width, heads in (
        ("vision", own.vision_hidden_size, own.vision_num_heads),
        ("llm", own.llm_hidden_size, own.llm_num_heads),
    ):
        yield from not_multiple(f"{section}{part}_hidden_size", width, f"{section}{part}_num_heads", heads)
    if own.llm_hidden_size % own.llm_num_heads == 0 and own.llm_hidden_size // own.llm_num_heads % 2:
        yield RunError(
            "Each head of the language model needs an even size.",
            key=section + "llm_hidden_size",
            value=own.llm_hidden_size,
            cause=f"Rotary positions turn pairs; {own.llm_hidden_size} / {own.llm_num_heads} heads is odd.",
            remedy=f"Take {own.llm_hidden_size + own.llm_num_heads}.",
            row="openvla-oft-sizes",
        )


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
