"""The interface of every policy: a module that is trained and served, and how frames go in and actions come out.

Shape legend: B rows, N images per row, H x W pixels, C control steps per chunk, A action dimensions, P proprioception,
K choices with a log-probability each: a multiple of C, those of the first control step first; most have K = C*A.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.config.schema import AttentionKernel, Precision, SftConfig
from rlrun.policies.distributions import ActionDistribution


class Policy(ABC):
    """What actor and rollout workers know of a policy.

    Example::

        distribution, values = policy(images, instructions, proprio, temperature=1.0)
        tokens = distribution.sample(keys)                       # [B, K], or what else the policy needs to judge it
        logprobs = distribution.logprobs(tokens)                 # [B, K]
        actions = policy.decode_actions(tokens.cpu().numpy())    # [B, C, A]
    """

    module: nn.Module  # all weights; those of the critic are named "value_head."; FSDP may shard it in place
    device: torch.device  # where forward passes run; whoever moves or shards the module sets it
    num_actions: int  # A
    num_action_chunks: int  # C
    num_proprio: int  # P; 0: takes none

    @abstractmethod
    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[ActionDistribution, Tensor | None]:
        """One forward pass, on the device of the module: what may be chosen, and values float32 [B] (None: no critic).

        images: uint8 [B, N, H, W, 3]; instructions: B sentences; proprio: float32 [B, P]; temperature > 0.
        """

    @abstractmethod
    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        """What was chosen, [B, ...] -> float32 [B, C, A] simulator units."""

    @abstractmethod
    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        """Write the folder that `policies.opening.open_policy` reads; named_tensors: whole ones of a sharded module,
        taken one by one."""

    def use_attention(self, asked: AttentionKernel | None, precision: Precision) -> None:  # noqa: B027
        """Attend as `policy.attention` says; a policy without attention has nothing to choose.

        precision: what forward passes compute in. Raises RunError where the kernel cannot be had here.
        """

    def fsdp_blocks(self) -> list[nn.Module]:
        """Modules to shard one by one, in the order of the forward pass; the root takes the rest."""
        return []

    def frozen_names(self) -> set[str]:
        """Parameters that never change, or that no forward pass reads: not trained, not sent to rollout workers."""
        return set()

    def observe(self, proprio: np.ndarray, reduce: Callable[[Tensor], Tensor]) -> None:  # noqa: B027  most keep nothing
        """Take float32 [M, P] of what was seen in a training step into running statistics, after its update.

        So an update sees what the rollout saw, and new statistics travel with the new weights. A collective:
        `reduce` sums a tensor over all ranks.
        """


class ImitationPolicy(Policy):
    """A policy that learns from demonstrations as well, each kind by a loss of its own."""

    @abstractmethod
    def imitation_loss(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        actions: np.ndarray,
        step_valid: np.ndarray,
        settings: SftConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(mean loss over the valid control steps, further such means to log); 0 where none is valid.

        actions: float32 [B, C, A], simulator units; step_valid: bool [B, C]; the others as in a forward pass.
        """
