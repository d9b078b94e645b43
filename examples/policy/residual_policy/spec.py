"""What the residual policy is, before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.config.sections import COUNT, Section, bounded
from rlrun.policies.spec import PolicySpec


@dataclass
class ResidualSettings(Section):
    """For policy.kind=residual."""

    width: int = bounded(64, COUNT)
    num_blocks: int = bounded(2, COUNT)


def recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("model_type") == "residual"


POLICY = "residual_policy.policy:ResidualPolicy"  # imports torch, which the spec does not
SPEC = PolicySpec("residual", recognizes, POLICY, from_scratch=f"{POLICY}.from_scratch", section=ResidualSettings)
