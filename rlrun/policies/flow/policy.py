"""A flow policy behind the policy interface: it acts by Flow-SDE, is judged by one random step, imitates by matching.

Shape legend: B rows, N images per row, H x W pixels, S control steps and D dimensions of the network's own chunk,
C executed control steps, A real dimensions, K = C*A, W numbers of a packed choice, P proprioception.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.config.schema import SftConfig
from rlrun.policies.distributions import ActionDistribution
from rlrun.policies.flow.distribution import ChunkShape, FlowSampler, FlowStep
from rlrun.policies.flow.flow_sde import FlowSde
from rlrun.policies.flow.matching import Matching
from rlrun.policies.flow.model import FlowModel, Point
from rlrun.policies.flow.tokens import FlowChoice
from rlrun.policies.policy import ImitationPolicy


class FlowPolicy(ImitationPolicy):
    """A policy of a kind names its inputs (`observed`) and the scale of its actions; the rest is here."""

    module: FlowModel

    def __init__(self, module: FlowModel, sde: FlowSde, shape: ChunkShape, num_proprio: int):
        self.module, self.sde, self.shape = module, sde, shape
        self.device = next(module.parameters()).device
        self.num_actions, self.num_action_chunks, self.num_proprio = shape.num_actions, shape.num_executed, num_proprio
        self._num_losses = 0  # of imitation, which draws by it

    @abstractmethod
    def observed(self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray) -> tuple:
        """Return the arguments of the network's `prefix`, on the policy's device."""

    @abstractmethod
    def normalized(self, actions: np.ndarray) -> np.ndarray:
        """Convert [B, C, A] in simulator units -> float32 [B, C, A] in the network's."""

    @abstractmethod
    def physical(self, actions: np.ndarray) -> np.ndarray:
        """Convert [B, C, A] in the network's units -> float32 [B, C, A] in simulator units."""

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[ActionDistribution, Tensor | None]:
        _, values, prefix = self.module(self.observed(images, instructions, proprio), None)
        network: Any = self.module.network

        def velocity(x: Tensor, time: Tensor, num_rows: int) -> Tensor:
            own = prefix if num_rows == len(images) else prefix.map(lambda part: part[:num_rows])
            return network.velocity(x.to(self.device), time.to(self.device), own)[0]

        return FlowSampler(self.sde, self.shape, velocity, len(images), temperature), values

    def evaluate(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        temperature: float,
        tokens: Tensor,
    ) -> tuple[ActionDistribution, Tensor | None]:
        choice = FlowChoice.of(tokens.to(self.device), self.shape.num_steps, self.shape.num_dims)
        point = Point(choice.before, self.sde.time_of(choice.step))
        velocity, values, _ = self.module(self.observed(images, instructions, proprio), point)
        return FlowStep.of(self.sde, self.shape, choice, velocity, temperature), values

    def imitation_loss(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        actions: np.ndarray,
        step_valid: np.ndarray,
        settings: SftConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        shape, valid = self.shape, torch.from_numpy(step_valid).to(self.device)
        shown = torch.from_numpy(self.normalized(_held(actions, step_valid))).to(self.device)
        chunk = shown.new_zeros(len(actions), shape.num_steps, shape.num_dims)
        chunk[:, : shape.num_executed, : shape.num_actions] = shown
        chunk[:, shape.num_executed :, : shape.num_actions] = shown[:, -1:]
        matching = Matching.drawn(chunk, self._num_losses)
        self._num_losses += 1
        velocity, _, _ = self.module(self.observed(images, instructions, proprio), matching.point)
        return matching.loss(velocity, valid, shape.num_actions), {}

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        num = self.num_action_chunks * self.num_actions
        return self.physical(tokens[:, -num:].reshape(-1, self.num_action_chunks, self.num_actions))


def _held(actions: np.ndarray, step_valid: np.ndarray) -> np.ndarray:
    """Return the actions [B, C, A] with those after the end of an episode replaced by its last one.

    The loss leaves them out, but the network sees all of its chunk.
    """
    steps = np.maximum.accumulate(np.where(step_valid, np.arange(step_valid.shape[1]), 0), axis=1)
    held = np.take_along_axis(actions, steps[..., None], axis=1)
    is_any = np.asarray(step_valid.any(axis=1)).reshape(-1, 1, 1)
    return np.where(is_any, held, 0.0).astype(np.float32)
