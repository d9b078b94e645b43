"""The interface of every policy: its trained and served module, and the conversion of frames to actions.

Shape legend: B rows, N images per row, H x W pixels, C control steps per chunk, A action dimensions, P proprioception,
K choices with a log-probability each: a multiple of C, ordered by control step; most policies have K = C*A.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.config.schema import AttentionKernel, Precision, RunConfig, SftConfig
from rlrun.policies.weight_files import WeightFiles


class Policy(ABC):
    """A policy as actor and rollout workers use it.

    Example::

        distribution, values = policy(images, instructions, proprio, temperature=1.0)
        tokens = distribution.sample(keys)                       # [B, K], or more if log-probabilities need it
        logprobs = distribution.logprobs(tokens)                 # [B, K]
        actions = policy.decode_actions(tokens.cpu().numpy())    # [B, C, A]
    """

    module: nn.Module  # all weights; those of the critic are named "value_head."; FSDP may shard it in place
    device: torch.device  # of forward passes; code that moves or shards the module sets it
    num_actions: int  # A
    num_action_chunks: int  # C
    num_proprio: int  # P; 0: no proprioception

    @abstractmethod
    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[ActionDistribution, Tensor | None]:
        """Run one pass on the module's device. Returns the distribution, and values float32 [B] (None: no critic).

        images: uint8 [B, N, H, W, 3]; instructions: B sentences; proprio: float32 [B, P]; temperature > 0.
        """

    def evaluate(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        temperature: float,
        tokens: Tensor,
    ) -> tuple[ActionDistribution, Tensor | None]:
        """Run one pass to learn from `tokens` [B, ...]: the distribution is asked about these only.

        By default the same as a call. A policy overrides it if its pass depends on the tokens, since all weights
        must be read within one forward pass of a sharded module.
        """
        return self(images, instructions, proprio, temperature)

    @abstractmethod
    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        """Convert tokens [B, ...] -> float32 [B, C, A] in simulator units."""

    @abstractmethod
    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        """Write the folder that `policies.opening` reads: config.json and *.safetensors, and whatever the kind needs.

        named_tensors: whole tensors of a sharded module, taken one by one.
        """

    @classmethod
    @abstractmethod
    def from_folder(cls, folder: Path, files: WeightFiles, run: RunConfig | None) -> Self:
        """Return the policy of a folder without its weights, which `policies.opening` reads afterwards.

        A large module is made under `torch.device("meta")`. files: the stored tensors, which must get the module's
        names (`files.rename`) if they have others. run: the run that uses the policy; None: it acts only.
        """

    def new_parts(self, folder: Path, seed: int) -> Mapping[str, Callable[[], Tensor]]:
        """Return initializers of the parameters that the folder may lack, by name; others must be in its files.

        Each is made when it is read, on the CPU, with the same values on every rank.
        """
        return {}

    def use_attention(self, asked: AttentionKernel | None, precision: Precision) -> None:  # noqa: B027
        """Use the kernel of `policy.attention`; a policy without attention ignores it.

        precision: of forward passes. Raises RunError if the kernel is not available here.
        """

    def stacks(self) -> list[list[nn.Module]]:
        """Return lists of blocks that run one after another in every forward pass, in that order.

        FSDP gathers blocks by units, which are made of neighbours in a stack; activations are checkpointed and graphs
        compiled block by block. Everything else stays gathered from the first use to the end of a forward and backward
        pass.
        """
        return []

    def frozen_names(self) -> set[str]:
        """Return parameters that never change or are never read: not trained, not sent to rollout workers."""
        return set()

    def unread_names(self) -> set[str]:
        """Return those of `frozen_names` that no forward pass reads, which FSDP never gathers; by default all."""
        return self.frozen_names()

    def observe(self, proprio: np.ndarray, reduce: Callable[[Tensor], Tensor]) -> None:  # noqa: B027  most keep nothing
        """Add float32 [M, P], the proprioception of a training step, to running statistics, after the step's update.

        Normalisation is frozen during an update; new statistics are sent with the new weights. A collective: `reduce`
        sums a tensor over all ranks.
        """


class ImitationPolicy(Policy):
    """A policy that also learns from demonstrations, each kind by its own loss."""

    # Imitation losses so far. A loss that draws, such as flow matching, draws by this number and adds 1 to it; it is
    # set beside reinforcement learning, so that a resumed run draws what the run would have drawn.
    num_losses: int = 0

    @property
    def num_demonstrated_steps(self) -> int:
        """Control steps of a demonstrated chunk: those that the policy executes, and those that it plans after them."""
        return self.num_action_chunks

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
        """Return (mean loss over the valid control steps, further such means to log); 0 if none is valid.

        actions: float32 [B, C, A], simulator units, C at most `num_demonstrated_steps`; step_valid: bool [B, C]; the
        others as in a forward pass.
        """


def torch_dtype(precision: Precision) -> torch.dtype:
    """Return the type of tensors in a precision."""
    return {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16}[precision]
