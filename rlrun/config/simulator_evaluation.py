"""A simulator as evaluations and certificates see it: where episodes begin, and what success means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlrun.config.schema import EnvConfig


@dataclass(frozen=True)
class Splits:
    """Where the episodes of training, validation and test begin, for people, and what differs from a benchmark.

    A simulator gets a reset seed, and `rlrun.edges.starts.split_of` returns the split it belongs to.
    """

    train: str = "drawn by seeds 4294967296 and above, demonstrations by seeds below 2000000"
    validation: str = "drawn by seeds from 2000000 on"
    test: str = "drawn by seeds from 2147483648 on"
    trained_on_test: str = ""  # a sentence, if the configuration says that training begins from test starts
    deviations: tuple[str, ...] = ()  # from a benchmark's published protocol, a sentence each


def no_perturbations(env: EnvConfig) -> dict[str, EnvConfig]:
    """Return none: for a simulator without perturbed worlds."""
    return {}


def as_it_is(env: EnvConfig) -> EnvConfig:
    """Return the same: for a simulator that evaluates in the world that it trains in."""
    return env


@dataclass(frozen=True)
class EvaluationSpec:
    """What a success rate in a simulator says. Read by evaluations, by `rlrun certify` and by the console.

    Example: EvaluationSpec(splits=lambda env: Splits(test="instances 301-340"))
    """

    # (EnvConfig) -> what the success rate counts; "": the goal of the activity
    meaning_of_success: Callable[[EnvConfig], str] = lambda env: ""
    splits: Callable[[EnvConfig], Splits] = lambda env: Splits()  # where episodes begin
    listed_instances: Callable[[EnvConfig], list[int] | None] = lambda env: None  # instances to report evaluations by
    # (EnvConfig) -> changed worlds by name, in which `rlrun certify` tests a policy too
    perturbations: Callable[[EnvConfig], dict[str, EnvConfig]] = no_perturbations
    # and those that repeat a part of these, as one difficulty: they are tested by their names only, not by [all]
    parts_of_perturbations: Callable[[EnvConfig], dict[str, EnvConfig]] = no_perturbations
    env: Callable[[EnvConfig], EnvConfig] = as_it_is  # the env of `python -m rlrun.eval`
