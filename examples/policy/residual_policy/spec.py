"""What the residual policy is, before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, Section, bounded
from rlrun.data.messages import Spaces
from rlrun.policies.spec import PolicySpec

if TYPE_CHECKING:
    import torch

    from residual_policy.policy import ResidualPolicy


@dataclass
class ResidualSettings(Section):
    """For policy.kind=residual."""

    width: int = bounded(64, COUNT)
    num_blocks: int = bounded(2, COUNT)


def recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("model_type") == "residual"


def from_scratch(config: RunConfig, spaces: Spaces) -> ResidualPolicy:
    from residual_policy.policy import ResidualPolicy as Class
    from residual_policy.policy import Sizes

    own = config.policy.section(ResidualSettings)
    sizes = Sizes(
        spaces.num_proprio,
        spaces.num_actions,
        config.policy.num_action_chunks,
        own.width,
        own.num_blocks,
        list(spaces.action_low),
        list(spaces.action_high),
    )
    return Class.new(sizes, config.seed)


def open_policy(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> ResidualPolicy:
    from residual_policy.policy import ResidualPolicy as Class

    return Class.load(folder, dtype, device)


SPEC = PolicySpec("residual", recognizes, open_policy, from_scratch=from_scratch, section=ResidualSettings)
