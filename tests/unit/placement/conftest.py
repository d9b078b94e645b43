"""Stored counts of the shipped runs' policies: to count one takes ten seconds of a core."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from rlrun.config.schema import RunConfig
from rlrun.placement import workload
from rlrun.placement.policy_counts import policy_counts
from rlrun.policies.counts import PolicyCounts

COUNTS = Path(__file__).parents[2] / "golden" / "policy_counts"


@functools.cache
def stored(name: str) -> PolicyCounts:
    return PolicyCounts.from_json((COUNTS / f"{name}.json").read_text())


def counts_of(config: RunConfig) -> PolicyCounts:
    """Return the stored counts; adapters are stored for OpenVLA-OFT, of other policies they are counted."""
    if config.actor.lora.rank and config.policy.kind != "openvla_oft":
        return policy_counts(config)
    return stored(f"{config.name.partition('_')[0]}_lora" if config.actor.lora.rank else config.name)


@pytest.fixture
def known_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "policy_counts", counts_of)
