"""A policy of your own: a perceptron that reads numbers and chooses Gaussian actions.

Shape legend: B rows, P proprioception, K = C*A choices: C control steps of A actions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from own_policy import OwnSettings
from safetensors.torch import save_file
from torch import Tensor, nn

from rlrun.config.schema import RunConfig
from rlrun.edges.spaces import Spaces
from rlrun.policies.distributions import Gaussian
from rlrun.policies.policy import Policy
from rlrun.policies.weight_files import WeightFiles


@dataclass
class Sizes:
    """The config.json of a policy folder."""

    num_proprio: int
    num_actions: int
    num_action_chunks: int
    width: int
    action_low: list[float]
    action_high: list[float]


class Network(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        num_choices = sizes.num_action_chunks * sizes.num_actions
        self.hidden = nn.Sequential(
            nn.Linear(sizes.num_proprio, sizes.width), nn.Tanh(), nn.Linear(sizes.width, sizes.width), nn.Tanh()
        )
        self.actions = nn.Linear(sizes.width, num_choices)
        self.value_head = nn.Linear(sizes.width, 1)  # rlrun finds a critic by this name
        self.log_std = nn.Parameter(torch.zeros(num_choices))

    def forward(self, proprio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.hidden(proprio.to(self.log_std.dtype))
        mean = 0.1 * self.actions(x).float()
        return mean, self.log_std.float().expand_as(mean), self.value_head(x).float().squeeze(-1)


class OwnPolicy(Policy):
    def __init__(self, sizes: Sizes):
        self.sizes, self.module, self.device = sizes, Network(sizes), torch.device("cpu")
        self.num_actions, self.num_action_chunks = sizes.num_actions, sizes.num_action_chunks
        self.num_proprio = sizes.num_proprio
        low, high = np.array(sizes.action_low), np.array(sizes.action_high)
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[Gaussian, Tensor]:
        mean, log_std, values = self.module(torch.from_numpy(proprio).to(self.device))
        return Gaussian(mean, log_std, temperature), values

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        chosen = tokens.reshape(len(tokens), self.num_action_chunks, self.num_actions)
        return (self._middle + self._half * chosen).astype(np.float32)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = dict(self.module.state_dict() if named_tensors is None else named_tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "own"} | asdict(self.sizes)))

    @classmethod
    def from_folder(cls, folder: Path, files: WeightFiles, run: RunConfig | None) -> OwnPolicy:
        described = json.loads((folder / "config.json").read_text())
        return cls(Sizes(**{name: described[name] for name in Sizes.__dataclass_fields__}))

    @classmethod
    def from_scratch(cls, config: RunConfig, spaces: Spaces) -> OwnPolicy:
        sizes = Sizes(
            spaces.num_proprio,
            spaces.num_actions,
            config.policy.num_action_chunks,
            config.policy.section(OwnSettings).width,
            list(spaces.action_low),
            list(spaces.action_high),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(sizes)
