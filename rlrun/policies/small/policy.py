"""SmallPolicy: the small network behind the policy interface, and its imitation by regression or by bins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlrun.algorithms.losses import imitation_loss, masked_mean
from rlrun.config.schema import RunConfig, SftConfig
from rlrun.policies.action_bounds import ActionBins, Bounds
from rlrun.policies.distributions import Bins, Gaussian
from rlrun.policies.folders import unfit
from rlrun.policies.policy import ImitationPolicy
from rlrun.policies.small.network import SmallNetwork
from rlrun.policies.small.spec import SmallConfig, new_config
from rlrun.policies.small.words import padded_rows
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.upload import uploaded
from rlrun.policies.weight_files import WeightFiles, write_weights

BOUNDS = "q99"  # the 1st and 99th percentile of the demonstrations become -1 and 1


class SmallPolicy(ImitationPolicy):
    """K normal numbers, or K tokens of 256 bins, between the bounds of the demonstrated actions."""

    module: SmallNetwork

    def __init__(self, module: SmallNetwork):
        config = module.config
        self.module = module
        self.config = config
        self.device = next(module.parameters()).device
        self.num_actions = config.num_actions
        self.num_proprio = config.num_proprio
        self.num_action_chunks = config.num_action_chunks
        self._bounds = Bounds(config.norm_stats["action"], BOUNDS, self.num_actions, "action")
        self._bins = ActionBins(self._bounds)
        self._proprio_bounds = None
        if self.num_proprio:
            self._proprio_bounds = Bounds(config.norm_stats["proprio"], BOUNDS, self.num_proprio, "proprio")

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[Bins | Gaussian, Tensor | None]:
        """Run one pass, see `Policy`. Raises ValueError for another number of cameras or of proprioception."""
        host = [torch.from_numpy(array) for array in (*padded_rows(instructions), self._shown(images))]
        host += self._state(proprio, len(images))
        words, seen, pixels, *states = uploaded(host, self.device)
        state = states[0] if states else None
        chosen, log_std, values = self.module(words, seen, self._resized(pixels), state)
        if log_std is None:
            return Bins(chosen, temperature), values
        return Gaussian(chosen, log_std, temperature), values

    def imitation_loss(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        actions: np.ndarray,
        step_valid: np.ndarray,
        settings: SftConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy of the bins, or the mean absolute difference of the mean from the actions."""
        mask = torch.from_numpy(step_valid).repeat_interleave(self.num_actions, dim=-1).to(self.device)
        distribution, _ = self(images, instructions, proprio, temperature=1.0)
        if isinstance(distribution, Bins):
            tokens = torch.from_numpy(self._bins.encode(actions)).flatten(1).to(self.device)
            return imitation_loss(distribution.logits, tokens, mask, settings.label_smoothing_bins)
        shown = torch.from_numpy(self._bounds.normalize(actions).astype(np.float32)).flatten(1).to(self.device)
        return masked_mean((distribution.mean - shown).abs(), mask), {}

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        chosen = tokens.reshape(len(tokens), -1, self.num_actions)
        return self._bins.decode(chosen) if self.config.has_bins else self._bounds.denormalize(chosen)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_weights(folder, self.module.state_dict().items() if named_tensors is None else named_tensors)
        self.config.save(folder)

    @classmethod
    def from_folder(cls, folder: Path, files: WeightFiles, run: RunConfig | None) -> Self:
        config = SmallConfig.load(folder)
        has_state = config.num_proprio > 0
        if run is not None and run.policy.use_proprio != has_state:
            raise unfit(folder, "policy.use_proprio", run.policy.use_proprio, has_state)
        with torch.device("meta"):
            return cls(SmallNetwork(config))

    @classmethod
    def from_demonstrations(cls, config: RunConfig, task: DemonstratedTask) -> Self:
        """Return a new policy, as the spec names it."""
        sizes = new_config(config, task.num_actions, task.num_proprio, task.cameras, task.norm_stats)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls(SmallNetwork(sizes))

    def _shown(self, images: np.ndarray) -> np.ndarray:
        if images.shape[1] != self.config.num_images:
            raise ValueError(f"{images.shape[1]} images per row; the policy takes {self.config.num_images}")
        return images

    def _resized(self, images: Tensor) -> Tensor:
        """Convert uint8 [B, N, H, W, 3] -> [B, N, S, S, 3], on their device."""
        size = (self.config.image_size, self.config.image_size)
        if tuple(images.shape[2:4]) == size:
            return images
        planes = images.flatten(0, 1).permute(0, 3, 1, 2).float()
        scaled = F.interpolate(planes, size, mode="bilinear", antialias=True)
        return scaled.permute(0, 2, 3, 1).unflatten(0, images.shape[:2])

    def _state(self, proprio: np.ndarray, num_rows: int) -> list[Tensor]:
        """Return float32 [B, P] in -1..1, in host memory; [] if the policy takes none."""
        if self._proprio_bounds is None:
            return []
        if proprio.shape != (num_rows, self.num_proprio):
            raise ValueError(f"proprioception: got {proprio.shape}, the policy takes [{num_rows}, {self.num_proprio}]")
        return [torch.from_numpy(self._proprio_bounds.normalize(proprio).astype(np.float32))]
