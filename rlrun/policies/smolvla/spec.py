"""The spec of SmolVLA, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.faults import Faults, not_multiple
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.smolvla.settings import SmolVLASettings
from rlrun.policies.spec import DemonstratedTask, PolicySpec
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    import torch

    from rlrun.policies.smolvla.policy import SmolVLAPolicy


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("type") == "smolvla"


def _open(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> SmolVLAPolicy:
    from rlrun.policies.smolvla.opening import open_smolvla  # importing transformers takes seconds

    return open_smolvla(folder, dtype, device, run)


def _from_demonstrations(config: RunConfig, task: DemonstratedTask) -> SmolVLAPolicy:
    from rlrun.policies.smolvla.new_policy import new_policy

    return new_policy(config, task)


def _num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy, or of the released SmolVLA for `policy.path`."""
    if config.policy.path is not None:
        return RELEASED_PARAMETERS
    from rlrun.policies.smolvla.new_policy import num_parameters

    return num_parameters(config, spaces.num_actions, spaces.num_proprio)


RELEASED_PARAMETERS = 450_046_176  # of the network on SmolVLM2-500M, with the unread head over words


def check_sizes(config: RunConfig) -> Faults:
    """Check that patches divide the image, and heads the hidden sizes.

    A policy from a folder has its own sizes and is not checked.
    """
    own, section = config.policy.section(SmolVLASettings), "policy.smolvla."
    if config.policy.path is not None:
        return
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
            row="smolvla-sizes",
        )


SPEC = PolicySpec(
    name="smolvla",
    section=SmolVLASettings,
    recognizes=_recognizes,
    open=_open,
    from_demonstrations=_from_demonstrations,
    check=check_sizes,
    observes=("images", "proprio", "instruction"),
    num_parameters=_num_parameters,
)
