"""A perceptron or convolutional network behind the policy interface; it ignores instructions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.config.schema import PolicyConfig, RunConfig
from rlrun.edges.spaces import Spaces
from rlrun.policies.actor_critic.spec import (
    LOG_STDS,
    ActionKind,
    Activation,
    ActorCriticConfig,
    CnnSettings,
    MlpSettings,
)
from rlrun.policies.distributions import Bins, Gaussian, Squashed
from rlrun.policies.folders import unfit
from rlrun.policies.policy import Policy
from rlrun.policies.upload import uploaded
from rlrun.policies.weight_files import WeightFiles, write_weights
from rlrun.system.errors import ExitStatus, RunError

CLIP = 10.0  # standard deviations from the mean
EPS = 1e-8
HIDDEN_GAIN = 2**0.5
POLICY_GAIN = 0.01  # small, so that a new policy acts nearly alike in all states
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {Activation.tanh.value: nn.Tanh, Activation.relu.value: nn.ReLU}


class RunningStatistics(nn.Module):
    """Statistics of vectors of `size` numbers; mean 0 and variance 1 before the first observation."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("count", torch.zeros(1))

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x - mean) / deviation, clipped; the shape of `x` [..., size]."""
        return ((x - self.mean) * (self.variance + EPS).rsqrt()).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def add(self, rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> None:
        """Add float32 [M, size] of every rank; `reduce` sums over the ranks. M may be 0.

        Uses two passes: sums of squares around the common mean, so that large values lose no digits.
        """
        rows = rows.double().cpu()
        sums = reduce(torch.cat([torch.tensor([float(len(rows))], dtype=torch.float64), rows.sum(0)]))
        if sums[0] == 0:
            return
        mean = sums[1:] / sums[0]
        variance = reduce((rows - mean).square().sum(0)) / sums[0]
        old_count = self.count.double().cpu()
        old_mean = self.mean.double().cpu()
        count = old_count + sums[0]
        shift = mean - old_mean
        share = sums[0] / count
        spread = self.variance.double().cpu() * (1 - share) + variance * share + shift.square() * share * (1 - share)
        self.mean.copy_(old_mean + shift * share)
        self.variance.copy_(spread)
        self.count.copy_(count)


class ActorCritic(nn.Module):
    """Policy and critic are separate perceptrons; with images they share the convolutions."""

    def __init__(self, config: ActorCriticConfig):
        super().__init__()
        self.config = config
        self.statistics = RunningStatistics(config.num_proprio) if config.is_normalized else None
        self.convolutions = _convolutions(config) if config.num_images else None
        width = config.num_proprio + (_num_features(config) if config.num_images else 0)
        choices = (2 if config.is_squashed else 1) if config.num_choices is None else config.num_choices
        activation = ACTIVATIONS[config.activation]
        self.policy = _perceptron(width, config.hidden_sizes, config.num_tokens * choices, POLICY_GAIN, activation)
        self.value_head = _perceptron(width, config.value_hidden_sizes, 1, 1.0, activation)
        if config.num_choices is None and not config.is_squashed:
            self.log_std = nn.Parameter(torch.full((config.num_tokens,), config.initial_log_std))

    def forward(
        self, images: Tensor | None, proprio: Tensor | None, is_valued: bool = True
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Run one pass. images: uint8 [B, N, S, S, 3]; proprio: float32 [B, P]; each None if the network takes none.

        Returns means [B, K] or logits [B, K, V], logarithms of the deviations [B, K] or None, and values [B] if
        `is_valued`; all float32.
        """
        features = self._features(images, proprio)
        values = self.value_head(features).float().squeeze(-1) if is_valued else None
        chosen = self.policy(features).float()
        if self.config.num_choices is not None:
            return chosen.unflatten(-1, (self.config.num_tokens, -1)), None, values
        if self.config.is_squashed:
            means, numbers = chosen.chunk(2, dim=-1)
            return means, _log_std(numbers, self.config.initial_log_std), values
        return chosen, torch.zeros_like(chosen) + self.log_std, values  # the parameter may be freed after the pass

    def _features(self, images: Tensor | None, proprio: Tensor | None) -> Tensor:
        """Return the common input of policy and critic, [B, F], in the precision in which they compute."""
        parts = []
        if proprio is not None:
            parts.append(proprio if self.statistics is None else self.statistics.normalize(proprio))
        if self.convolutions is not None:
            assert images is not None
            pixels = images.permute(0, 1, 4, 2, 3).flatten(1, 2).to(_dtype(self.convolutions)) / 255
            parts.append(self.convolutions(pixels).to(torch.float32))
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(_dtype(self.policy))


def _dtype(layers: nn.Sequential) -> torch.dtype:
    """Return the precision of a stack: the type of its first layer's weights."""
    first = layers[0]
    assert isinstance(first, nn.Linear | nn.Conv2d)
    return first.weight.dtype


def _log_std(numbers: Tensor, initial: float) -> Tensor:
    """Return numbers within LOG_STDS, by a tanh; `initial` where `numbers` are 0."""
    low, high = LOG_STDS
    middle = (low + high) / 2
    half = (high - low) / 2
    return middle + half * (numbers + math.atanh((initial - middle) / half)).tanh()


def _perceptron(
    width: int, hidden_sizes: Sequence[int], num_outputs: int, gain: float, activation: Callable[[], nn.Module]
) -> nn.Sequential:
    layers: list[nn.Module] = []
    sizes = [width, *hidden_sizes]
    for fan_in, fan_out in pairwise(sizes):
        layers += [_orthogonal(nn.Linear(fan_in, fan_out), HIDDEN_GAIN), activation()]
    return nn.Sequential(*layers, _orthogonal(nn.Linear(sizes[-1], num_outputs), gain))


def _convolutions(config: ActorCriticConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise([3 * config.num_images, *config.conv_channels]):
        convolution = nn.Conv2d(fan_in, fan_out, kernel_size=4, stride=2, padding=1)
        layers += [_orthogonal(convolution, HIDDEN_GAIN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


def _num_features(config: ActorCriticConfig) -> int:
    return config.conv_channels[-1] * (config.image_size // 2 ** len(config.conv_channels)) ** 2


def _orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _require_continuous(policy: PolicyConfig, settings: MlpSettings, spaces: Spaces) -> None:
    """Raise RunError for discrete actions that should be squashed."""
    if spaces.num_choices is not None and settings.distribution is ActionKind.squashed:
        raise RunError(
            "Numbers between limits are no choices: the actions of this world are discrete.",
            key=f"policy.{policy.kind}.distribution",
            value=settings.distribution.value,
            cause=f"each action is one of {spaces.num_choices}",
            remedy=f"Set policy.{policy.kind}.distribution=normal, with algorithm.name=ppo.",
            exit_status=ExitStatus.bad_config,
        )


class ActorCriticPolicy(Policy):
    """Continuous actions are normal numbers, with -1..1 as the simulator's limits, or tanh of such numbers. Discrete
    ones are one bin each."""

    module: ActorCritic

    def __init__(self, model: ActorCritic):
        config = model.config
        self.module = model
        self.config = config
        self.device = next(model.parameters()).device
        self.num_actions = config.num_actions
        self.num_proprio = config.num_proprio
        self.num_action_chunks = config.num_action_chunks
        limits = np.array([config.action_low, config.action_high])
        low, high = np.where(np.isfinite(limits).all(0), limits, [[-1.0], [1.0]])
        self._middle = (low + high) / 2
        self._half = (high - low) / 2

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[ActionDistribution, Tensor | None]:
        given = {"images": images} if self.config.num_images else {}
        given |= {"proprio": proprio} if self.config.num_proprio else {}
        sent = uploaded([torch.from_numpy(array) for array in given.values()], self.device)
        inputs = dict(zip(given, sent, strict=True))
        chosen, log_std, values = self.module(inputs.get("images"), inputs.get("proprio"))
        if log_std is None:
            return Bins(chosen, temperature), values
        kind = Squashed if self.config.is_squashed else Gaussian
        return kind(chosen, log_std, temperature), values

    def choose(self, proprio: Tensor) -> Squashed:
        """Return the distribution for proprioception alone, float32 [B, P], in one pass without values.

        The policy must be `is_squashed`, and observe no pictures.
        """
        chosen, log_std, _ = self.module(None, proprio, is_valued=False)
        return Squashed(chosen, log_std, temperature=1.0)

    def normalized(self, proprio: Tensor) -> Tensor:
        """Return the proprioception as the networks read it, float32 [B, P]."""
        statistics = self.module.statistics
        return proprio if statistics is None else statistics.normalize(proprio)

    def squash(self, tokens: Tensor) -> Tensor:
        """Return the chosen numbers between -1 and 1, [B, K], of tokens [B, K]."""
        return tokens.float().tanh()

    def scale(self, actions: np.ndarray) -> Tensor:
        """Return actions in simulator units [B, C, A] as numbers between -1 and 1, float32 [B, K]."""
        scaled = (actions.astype(np.float64) - self._middle) / self._half
        return torch.from_numpy(scaled.clip(-1, 1).astype(np.float32)).flatten(1)

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        chosen = tokens.reshape(len(tokens), -1, self.num_actions)
        if self.config.num_choices is not None:
            return chosen.astype(np.float32)
        chosen = np.tanh(chosen) if self.config.is_squashed else chosen
        return (self._middle + self._half * chosen).astype(np.float32)

    def observe(self, proprio: np.ndarray, reduce: Callable[[Tensor], Tensor]) -> None:
        if self.module.statistics is not None:
            self.module.statistics.add(torch.from_numpy(proprio), reduce)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_weights(folder, self.module.state_dict().items() if named_tensors is None else named_tensors)
        self.config.save(folder)

    @classmethod
    def from_folder(cls, folder: Path, files: WeightFiles, run: RunConfig | None) -> Self:
        config = ActorCriticConfig.load(folder)
        wanted = None if run is None else getattr(run.policy.section(MlpSettings), "distribution", None)
        if wanted is ActionKind.squashed and not config.is_squashed:  # which SAC and RLPD need
            raise unfit(folder, "policy.mlp.distribution", wanted.value, ActionKind.normal.value)
        with torch.device("meta"):
            return cls(ActorCritic(config))

    @classmethod
    def from_scratch(cls, config: RunConfig, spaces: Spaces) -> Self:
        """Return a new network, as the specs name it."""
        return cls.new(config.policy, config.env.image_size, spaces, config.seed)

    @classmethod
    def new(cls, policy: PolicyConfig, image_size: int, spaces: Spaces, seed: int) -> Self:
        """Return a new network on the CPU; the same arguments give the same weights."""
        settings = policy.section(MlpSettings)
        _require_continuous(policy, settings, spaces)
        has_images = isinstance(settings, CnnSettings)
        config = ActorCriticConfig(
            num_actions=spaces.num_actions,
            num_action_chunks=policy.num_action_chunks,
            num_choices=spaces.num_choices,
            action_low=spaces.action_low,
            action_high=spaces.action_high,
            num_proprio=spaces.num_proprio if policy.use_proprio or not has_images else 0,
            num_images=spaces.num_images if has_images else 0,
            image_size=image_size,
            hidden_sizes=tuple(settings.hidden_sizes),
            value_hidden_sizes=tuple(policy.value_hidden_sizes),
            conv_channels=tuple(settings.conv_channels) if isinstance(settings, CnnSettings) else (),
            initial_log_std=settings.initial_log_std,
            is_normalized=settings.normalize_observations,
            camera_names=spaces.cameras if has_images else (),
            distribution=settings.distribution.value,
            activation=settings.activation.value,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(ActorCritic(config))
