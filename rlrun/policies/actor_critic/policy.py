"""A perceptron or convolutional network behind the policy interface; it ignores instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlrun.config.schema import PolicyConfig
from rlrun.data.messages import Spaces
from rlrun.policies.actor_critic.config import ActorCriticConfig
from rlrun.policies.actor_critic.model import ActorCritic
from rlrun.policies.actor_critic.settings import CnnSettings, MlpSettings
from rlrun.policies.distributions import ActionDistribution, Bins, Gaussian
from rlrun.policies.policy import Policy
from rlrun.policies.weight_files import WEIGHTS_FILE
from rlrun.policies.weight_writer import write_weights


class ActorCriticPolicy(Policy):
    """Continuous actions are Gaussians, with -1..1 as the simulator's limits. Discrete ones are one bin each."""

    module: ActorCritic

    def __init__(self, model: ActorCritic):
        config = model.config
        self.module, self.config = model, config
        self.device = next(model.parameters()).device
        self.num_actions, self.num_proprio = config.num_actions, config.num_proprio
        self.num_action_chunks = config.num_action_chunks
        limits = np.array([config.action_low, config.action_high])
        low, high = np.where(np.isfinite(limits).all(0), limits, [[-1.0], [1.0]])
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[ActionDistribution, Tensor]:
        pixels = torch.from_numpy(images).to(self.device) if self.config.num_images else None
        state = torch.from_numpy(proprio).to(self.device) if self.config.num_proprio else None
        chosen, log_std, values = self.module(pixels, state)
        distribution = Bins(chosen, temperature) if log_std is None else Gaussian(chosen, log_std, temperature)
        return distribution, values

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        chosen = tokens.reshape(len(tokens), -1, self.num_actions)
        if self.config.num_choices is not None:
            return chosen.astype(np.float32)
        return (self._middle + self._half * chosen).astype(np.float32)

    def observe(self, proprio: np.ndarray, reduce: Callable[[Tensor], Tensor]) -> None:
        if self.module.statistics is not None:
            self.module.statistics.add(torch.from_numpy(proprio), reduce)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_weights(folder, self.module.state_dict().items() if named_tensors is None else named_tensors)
        self.config.save(folder)

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device | str) -> ActorCriticPolicy:
        """Load a policy folder. Raises OSError, KeyError, SafetensorError or RuntimeError if it is incomplete."""
        with torch.device("meta"):  # memory only for tensors that are in the file, whatever sizes config.json names
            model = ActorCritic(ActorCriticConfig.load(folder))
        stored = load_file(folder / WEIGHTS_FILE)  # maps the file: copied, since an offloaded policy frees its memory
        model.load_state_dict({name: tensor.clone() for name, tensor in stored.items()}, assign=True)
        return cls(model.to(device, dtype).eval())


def new_actor_critic(policy: PolicyConfig, image_size: int, spaces: Spaces, seed: int) -> ActorCriticPolicy:
    """Return a network from scratch, on the CPU; the same arguments give the same weights."""
    own = policy.section(MlpSettings)
    has_images = isinstance(own, CnnSettings)
    config = ActorCriticConfig(
        num_actions=spaces.num_actions,
        num_action_chunks=policy.num_action_chunks,
        num_choices=spaces.num_choices,
        action_low=spaces.action_low,
        action_high=spaces.action_high,
        num_proprio=spaces.num_proprio if policy.use_proprio or not has_images else 0,
        num_images=spaces.num_images if has_images else 0,
        image_size=image_size,
        hidden_sizes=tuple(own.hidden_sizes),
        value_hidden_sizes=tuple(policy.value_hidden_sizes),
        conv_channels=tuple(own.conv_channels) if isinstance(own, CnnSettings) else (),
        initial_log_std=own.initial_log_std,
        is_normalized=own.normalize_observations,
        camera_names=spaces.cameras if has_images else (),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCriticPolicy(ActorCritic(config))
