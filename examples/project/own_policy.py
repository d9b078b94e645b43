"""What rlrun has to know of the policy in own_network.py. It is imported for --help too, so it imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.config.sections import COUNT, Section, bounded
from rlrun.policies.spec import PolicySpec


@dataclass
class OwnSettings(Section):
    """The section `policy.own`; the comments are shown by --help."""

    width: int = bounded(64, COUNT)  # of the two hidden layers


def recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("model_type") == "own"


POLICY = "own_network:OwnPolicy"
SPEC = PolicySpec("own", recognizes, POLICY, from_scratch=f"{POLICY}.from_scratch", section=OwnSettings)
