"""The spec of DSRL, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlrun.algorithms.dsrl.settings import DsrlConfig
from rlrun.algorithms.spec import AlgorithmSpec, RolloutRule
from rlrun.config.schema import AlgorithmConfig, RunConfig
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.algorithms.dsrl.algorithm import Dsrl


def _make(config: AlgorithmConfig) -> Dsrl:
    from rlrun.algorithms.dsrl.algorithm import Dsrl as Class  # imports torch

    return Class(config)


def _check(config: RunConfig) -> Iterator[RunError]:
    """Only a policy whose first noise is chosen can be steered."""
    kind = config.policy.kind
    sampling = getattr(config.policy.sections.get(kind), "sampling", None)
    if sampling is None or sampling.value != "dsrl":
        yield RunError(
            "DSRL chooses the noise that a flow policy begins with, and this policy chooses none.",
            key="algorithm.name",
            value="dsrl",
            cause=f"policy.kind={kind}" + (f", policy.{kind}.sampling={sampling.value}" if sampling else ""),
            remedy="Take policy=smolvla_dsrl, or policy=pi05 policy.pi.sampling=dsrl.",
        )


def _kept_bytes(config: RunConfig, choice_bytes: int) -> int:
    """A transition has a choice, and what was seen after it."""
    return 2 * choice_bytes * config.algorithm.section(DsrlConfig).replay_size


SPEC = AlgorithmSpec(
    "dsrl",
    _make,
    lambda config: RolloutRule(needs_values=False),
    DsrlConfig,
    has_critic=False,
    check=_check,
    kept_bytes=_kept_bytes,
)
