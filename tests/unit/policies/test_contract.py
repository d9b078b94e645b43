"""The suite of `rlrun check-policy`: rlrun's own keep the contract, and broken ones are named by what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.edges.spaces import Spaces
from rlrun.policies.actor_critic.policy import ActorCriticPolicy
from rlrun.policies.actor_critic.spec import ActionKind, Activation, MlpSettings
from rlrun.policies.distributions import Gaussian
from rlrun.policies.small.spec import SmallDistribution, SmallSettings
from rlrun.policies.spec import PolicySpec
from rlrun.testing.policies import PolicyContract

COUNTER = count()
SPACES = Spaces(2, None, (-1.0, -1.0), (1.0, 1.0), num_proprio=5, num_images=1)


def breaches(spec: PolicySpec) -> list[str]:
    config = RunConfig()
    config.policy.kind, config.env.image_size = spec.name, 32
    config.policy.sections = {spec.name: spec.section()}
    return [breach.what for breach in PolicyContract(spec, config, SPACES).breaches()]


@pytest.mark.parametrize("name", ["mlp", "cnn", "small", "openvla_oft", "smolvla", "pi", "gr00t"])
def test_those_of_rlrun_keep_it(name: str) -> None:
    assert breaches(POLICIES.get(name)) == []


def test_squashed_actions_keep_it() -> None:
    config = RunConfig()
    config.policy.kind, config.env.image_size = "mlp", 32
    config.policy.sections = {"mlp": MlpSettings(distribution=ActionKind.squashed, activation=Activation.relu)}
    assert PolicyContract(POLICIES.get("mlp"), config, SPACES).breaches() == []


def test_bins_of_the_small_one_keep_it() -> None:
    config = RunConfig()
    config.policy.kind, config.env.image_size = "small", 32
    config.policy.sections = {"small": SmallSettings(distribution=SmallDistribution.bins)}
    assert PolicyContract(POLICIES.get("small"), config, SPACES).breaches() == []


def broken(**members: object) -> PolicySpec:
    """A perceptron of another class, with these members in place of its own."""
    name = f"Broken{next(COUNTER)}"
    globals()[name] = type(name, (ActorCriticPolicy,), members)
    policy = f"{__name__}:{name}"
    return replace(POLICIES.get("mlp"), policy=policy, from_scratch=f"{policy}.from_scratch")


def forward(change: Callable) -> Callable:
    def call(self, *arguments):
        return change(self, *ActorCriticPolicy.__call__(self, *arguments))

    return call


def hidden_state(self, distribution, values):
    if not hasattr(self, "shift"):
        self.shift = 0.1 * next(COUNTER)
    return Gaussian(distribution.mean + self.shift, distribution._log_std, 1.0), values


class Unkeyed(Gaussian):
    def sample(self, keys: np.ndarray) -> torch.Tensor:
        return self.mean + torch.randn_like(self.mean)


class Constant(Gaussian):
    def sample(self, keys: np.ndarray) -> torch.Tensor:
        return self.mean


class Summed(Gaussian):
    def logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().logprobs(tokens).sum(-1)


class Endless(Gaussian):
    def entropy(self) -> torch.Tensor:
        return super().entropy() / 0


class Unlike(Gaussian):
    def slice_rows(self, num_rows: int) -> Gaussian:
        return Gaussian(self.mean[-num_rows:], self._log_std[-num_rows:], temperature=1.0)


class Cropped(Gaussian):
    def most_likely(self) -> torch.Tensor:
        return self.mean[1:]


class Steep(torch.autograd.Function):
    """The same numbers, with an infinite gradient."""

    @staticmethod
    def forward(context: object, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.clone()

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / 0


def noise_in_training(self, distribution, values):
    shift = 0.5 if self.module.training else 0.0
    return Gaussian(distribution.mean + shift, distribution._log_std, 1.0), values


def as_class(kind: type[Gaussian]) -> PolicySpec:
    return broken(__call__=forward(lambda self, found, values: (kind(found.mean, found._log_std, 1.0), values)))


BATCH = "depends on the other rows"
BROKEN: dict[str, PolicySpec] = {
    "of acting and learning differ": broken(__call__=forward(noise_in_training)),
    "the same keys drew other choices": as_class(Unkeyed),
    "other keys drew the same choices": as_class(Constant),
    "log-probabilities are torch.float32 (6,)": as_class(Summed),
    BATCH: broken(
        __call__=forward(
            lambda self, found, values: (Gaussian(found.mean + found.mean.mean(0), found._log_std, 1.0), values)
        )
    ),
    "no gradient reaches log_std": broken(
        __call__=forward(lambda self, found, values: (Gaussian(found.mean, found._log_std.detach(), 1.0), values))
    ),
    "values are torch.float32 (6, 1)": broken(
        __call__=forward(lambda self, found, values: (found, values.unsqueeze(-1)))
    ),
    "drawn actions are float64": broken(
        decode_actions=lambda self, tokens: ActorCriticPolicy.decode_actions(self, tokens).astype(np.float64)
    ),
    "actions are not finite": broken(
        decode_actions=lambda self, tokens: ActorCriticPolicy.decode_actions(self, tokens) / np.float32(0)
    ),
    "which the module has not": broken(frozen_names=lambda self: {"tail.weight"}),
    "something that it computes with is not in it": broken(__call__=forward(hidden_state)),
    "entropy are not finite": as_class(Endless),
    "slice_rows(2) of a distribution has other log-probabilities": as_class(Unlike),
    "most likely actions are float32 (5,": as_class(Cropped),
    "gradients are not finite in": broken(
        __call__=forward(lambda self, found, values: (Gaussian(Steep.apply(found.mean), found._log_std, 1.0), values))
    ),
    "save wrote no config.json": broken(save=lambda self, folder: folder.mkdir()),
    "does not come back from the folder": broken(
        save=lambda self, folder: ActorCriticPolicy.save(
            self, folder, [(name, torch.zeros_like(tensor)) for name, tensor in self.module.state_dict().items()]
        )
    ),
    "does not recognize": replace(POLICIES.get("mlp"), recognizes=lambda described: False),
    "the spec states": replace(POLICIES.get("mlp"), num_parameters=lambda config, spaces: 7),
    "the same seed gave other weights": broken(
        from_scratch=classmethod(
            lambda cls, config, spaces: cls.new(config.policy, 32, spaces, seed=int(torch.seed() % 1000))
        )
    ),
    "another seed gave the same weights": broken(
        from_scratch=classmethod(lambda cls, config, spaces: cls.new(config.policy, 32, spaces, seed=0))
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_one_is_named(what: str) -> None:
    found = breaches(BROKEN[what])
    assert any(what in one for one in found), found


def unused(spec: PolicySpec, num_images: int = 1) -> list[str]:
    config = RunConfig()
    config.policy.kind, config.env.image_size = spec.name, 32
    config.policy.sections = {spec.name: spec.section()}
    return PolicyContract(spec, config, replace(SPACES, num_images=num_images)).unused()


@pytest.mark.parametrize("name", ["mlp", "cnn", "small"])
def test_those_of_rlrun_use_what_they_observe(name: str) -> None:
    assert unused(POLICIES.get(name)) == []


def test_a_policy_that_ignores_its_observations_is_told() -> None:
    """Gradients of numbers that were multiplied by zero are there, and zero."""
    spec = broken(__call__=lambda self, i, s, p, t: ActorCriticPolicy.__call__(self, i, s, 0 * p, t))
    told = unused(replace(spec, observes=("images", "proprio", "instruction")))
    assert [sentence.split(",")[0] for sentence in told] == [
        "it observes pictures",
        "it observes the robot's state",
        "it observes instructions",
    ]
    assert unused(replace(spec, observes=("images",)), num_images=0) == []
