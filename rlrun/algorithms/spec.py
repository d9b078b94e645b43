"""What the rest of rlrun knows of an algorithm before torch is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import AlgorithmConfig, RunConfig
from rlrun.config.sealing import Section
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm


@dataclass(frozen=True)
class RolloutRule:
    """How env workers collect what an algorithm learns from.

    Example: GRPO with groups of 8: RolloutRule(needs_values=False, one_episode=True, group_size=8).
    """

    needs_values: bool = True  # of every observation, and of the last one of a truncated episode
    one_episode: bool = False  # a row rests after its first episode of a rollout epoch, in place of starting another
    group_size: int = 1  # consecutive envs whose episodes start from one reset seed

    def __post_init__(self) -> None:
        if self.needs_values and self.one_episode:
            raise ValueError("values are asked of rows that all act: a rule has needs_values or one_episode, not both")


def _nothing(config: RunConfig) -> Iterator[RunError]:
    yield from ()


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm. A package brings its own by an entry point of the group `rlrun.algorithms`."""

    name: str
    make: Callable[[AlgorithmConfig], Algorithm]  # imports torch
    rollout: Callable[[AlgorithmConfig], RolloutRule] = lambda config: RolloutRule()
    section: type[Section] | None = None  # keys of algorithm.<name>; None: it has none of its own
    has_critic: bool = True  # False: no value head is trained, and the optimizer keeps no state for it
    check: Callable[[RunConfig], Iterator[RunError]] = _nothing  # what ranges of single keys cannot say


def rollout_rule(config: AlgorithmConfig) -> RolloutRule:
    """That of the algorithm which is chosen."""
    spec: AlgorithmSpec = ALGORITHMS.get(config.name)
    return spec.rollout(config)
