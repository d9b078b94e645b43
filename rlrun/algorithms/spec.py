"""The spec of an algorithm, which the rest of rlrun reads without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import AlgorithmConfig, RunConfig
from rlrun.config.sections import Section
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm, OffPolicyAlgorithm


@dataclass(frozen=True)
class RolloutRule:
    """How env workers collect for an algorithm.

    Example: GRPO with groups of 8: RolloutRule(needs_values=False, one_episode=True, group_size=8).
    """

    needs_values: bool = True  # values of every observation, and of the last one of a truncated episode
    one_episode: bool = False  # a row has one episode per rollout epoch, and then rests
    group_size: int = 1  # consecutive envs whose episodes have the same reset seed

    def __post_init__(self) -> None:
        if self.needs_values and self.one_episode:
            raise ValueError("values are asked of rows that all act: a rule has needs_values or one_episode, not both")


def _nothing(config: RunConfig) -> Iterator[RunError]:
    yield from ()


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm. A package adds its own by an entry point of the group `rlrun.algorithms`."""

    name: str
    make: Callable[[AlgorithmConfig], Algorithm | OffPolicyAlgorithm]  # imports torch
    rollout: Callable[[AlgorithmConfig], RolloutRule] = lambda config: RolloutRule()
    section: type[Section] | None = None  # keys of algorithm.<name>; None: no keys of its own
    has_critic: bool = True  # False: no value head is trained, and the optimizer keeps no state for it
    check: Callable[[RunConfig], Iterator[RunError]] = _nothing  # checks beyond the ranges of single keys
    # Host memory that each actor rank keeps between steps, such as a replay buffer; the integer: bytes of a choice in a
    # trajectory.
    kept_bytes: Callable[[RunConfig, int], int] = lambda config, choice_bytes: 0


def rollout_rule(config: AlgorithmConfig) -> RolloutRule:
    """Return the rollout rule of the configured algorithm."""
    spec: AlgorithmSpec = ALGORITHMS.get(config.name)
    return spec.rollout(config)
