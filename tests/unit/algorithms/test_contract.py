"""The suite of `rlrun check-algorithm`: rlrun's own keep the contract, and broken ones are named by what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rlrun.algorithms.algorithm import Algorithm, LossTerm, Reduction
from rlrun.algorithms.ppo import PPO
from rlrun.algorithms.spec import AlgorithmSpec, RolloutRule
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import Aggregation, RunConfig
from rlrun.testing.algorithms import AlgorithmContract


def breaches(spec: AlgorithmSpec) -> list[str]:
    config = RunConfig()
    config.algorithm.name = spec.name
    return [breach.what for breach in AlgorithmContract(spec, config).breaches()]


@pytest.mark.parametrize("name", ["ppo", "grpo", "rloo", "reinforce_plus_plus", "nft"])
def test_those_of_rlrun_keep_it(name: str) -> None:
    assert breaches(ALGORITHMS.get(name)) == []


@pytest.mark.parametrize("aggregation", Aggregation)
@pytest.mark.parametrize("name", ["ppo", "nft"])
def test_they_keep_it_with_every_aggregation(name: str, aggregation: Aggregation) -> None:
    config = RunConfig()
    config.algorithm.name, config.algorithm.aggregation = name, aggregation
    assert AlgorithmContract(ALGORITHMS.get(name), config).breaches() == []


def advantages(change: Callable) -> type[Algorithm]:
    class Broken(PPO):
        def advantages(self, steps, reduce):
            return change(steps, super().advantages(steps, reduce))

    return Broken


def loss(change: Callable) -> type[Algorithm]:
    class Broken(PPO):
        def loss(self, outputs, targets):
            return change(outputs, targets, super().loss(outputs, targets))

    return Broken


def unmasked(outputs, targets, losses):
    return replace(losses, terms=[LossTerm(-outputs.logprobs.mean(), Reduction.tokens), *losses.terms])


def blind_to_masks(outputs, targets, losses):
    mean = -(outputs.unit_logprobs * targets.advantages[:, None]).where(targets.unit_mask, 0.0).mean()
    return replace(losses, terms=[LossTerm(mean, Reduction.units), losses.terms[-1]])


BROKEN = {
    "a masked chunk step has an advantage": advantages(
        lambda steps, found: replace(found, advantages=found.advantages + 1)
    ),
    "keeps chunk steps that are not valid": advantages(
        lambda steps, found: replace(found, mask=torch.ones_like(found.mask))
    ),
    "advantages are not finite": advantages(
        lambda steps, found: replace(found, advantages=torch.where(found.mask, torch.nan, 0.0))
    ),
    "raw are (": advantages(lambda steps, found: replace(found, raw=found.raw.flatten())),
    "the mask keeps nothing": advantages(
        lambda steps, found: replace(
            found, mask=torch.zeros_like(found.mask), advantages=torch.zeros_like(found.advantages)
        )
    ),
    "what invalid chunk steps hold changes": advantages(
        lambda steps, found: replace(
            found, advantages=torch.where(found.mask, found.advantages - steps.rewards.mean(), 0.0)
        )
    ),
    "returns are what a critic": advantages(lambda steps, found: replace(found, returns=None)),
    "no finite scalar": loss(
        lambda outputs, targets, losses: replace(losses, terms=[LossTerm(outputs.logprobs.sum() / 0, Reduction.tokens)])
    ),
    "fall where advantages are positive": loss(
        lambda outputs, targets, losses: replace(
            losses, terms=[replace(losses.terms[0], coefficient=-1.0), *losses.terms[1:]]
        )
    ),
    "masked choices get a gradient": loss(unmasked),
    "is no mean over units": loss(blind_to_masks),
    "values get no gradient": loss(lambda outputs, targets, losses: replace(losses, terms=losses.terms[:1])),
    "the loss has no terms": loss(lambda outputs, targets, losses: replace(losses, terms=[])),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_one_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Broken", BROKEN[what], raising=False)
    found = breaches(replace(ALGORITHMS.get("ppo"), algorithm=f"{__name__}:Broken"))
    assert any(what in one for one in found), found


def test_rollout_rules_fit_the_critic() -> None:
    ppo = ALGORITHMS.get("ppo")
    found = breaches(replace(ppo, rollout=lambda config: RolloutRule(needs_values=False)))
    assert any("asks for no values" in one for one in found)
    with pytest.raises(ValueError, match="not both"):
        RolloutRule(needs_values=True, one_episode=True)
