"""State of an actor rank in training: the sharded policy, its optimizers, the reference weights, and counters.

Shape legend: M chunk steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.actor.gathering import GatherSpec
from rlrun.actor.optimizer import GuardedOptimizer
from rlrun.actor.process_group import Ranks
from rlrun.actor.sharding import ShardedPolicy, form_mesh
from rlrun.algorithms.spec import AlgorithmSpec
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import RunConfig
from rlrun.policies.compilation import Fallback, chosen_backend, prepare_blocks
from rlrun.policies.offloading import Move, local
from rlrun.policies.policy import torch_dtype
from rlrun.system.telemetry import Telemetry

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from rlrun.algorithms.algorithm import ActionDistribution
    from rlrun.policies.policy import Policy
    from rlrun.policies.weight_files import StoredWeights


class ReferenceWeights:
    """A snapshot of the shards, put in the place of the master weights to compute its log-probabilities.

    It has the precision in which the policy computes: gathering casts to that anyway, so no result depends on it.
    """

    def __init__(self, sharded: ShardedPolicy):
        self._sharded = sharded
        sharded.reshard()
        self.shards = {
            name: parameter.detach().to(sharded.param_dtype, copy=True)
            for name, parameter in sharded.module.named_parameters()
            if parameter.requires_grad  # others never change
        }
        self.buffers = {name: buffer.clone() for name, buffer in sharded.module.named_buffers()}  # as of observations

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The shards and the buffers, as a checkpoint keeps them."""
        return self.shards | self.buffers

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take tensors of a checkpoint; one of an older rlrun has no buffers, and those of now stay."""
        self.buffers |= {name: tensor for name, tensor in tensors.items() if name in self.buffers}
        self.shards = {name: tensor for name, tensor in tensors.items() if name not in self.buffers}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the reference weights inside this context; drops gathered copies before and after.

        Peak memory: one more copy of the master weights, at a time when no gradients are held.
        """
        self._sharded.reshard()
        parameters = dict(self._sharded.module.named_parameters())
        masters = {name: local(parameters[name].detach()).clone() for name in self.shards}
        buffers = dict(self._sharded.module.named_buffers())
        present = {name: buffers[name].clone() for name in self.buffers}
        try:
            for name, buffer in self.buffers.items():
                buffers[name].copy_(buffer)
            for name, shard in self.shards.items():
                local(parameters[name].detach()).copy_(local(shard))
            with torch.no_grad():
                yield
        finally:
            self._sharded.reshard()
            for name, master in masters.items():
                local(parameters[name].detach()).copy_(master)
            for name, buffer in present.items():
                buffers[name].copy_(buffer)


def trained_shards(sharded: ShardedPolicy) -> dict[str, Tensor]:
    """Return the trained shards themselves; drops gathered copies of them."""
    sharded.reshard()
    return {name: held.detach() for name, held in sharded.module.named_parameters() if held.requires_grad}


def _exchange(one: Tensor, other: Tensor) -> None:
    held = one.clone()
    one.copy_(other)
    other.copy_(held)


class Learner:
    """Training state of one actor rank, which the functions of `actor.updates` and `actor.imitation` change.

    Every public method is a collective: all ranks call it, in the same order.

    The process group must have been joined (`actor.process_group.join`). The module of `policy`, whole
    or without memory, is sharded in place.
    """

    def __init__(
        self,
        config: RunConfig,
        policy: Policy,
        rank: int,
        world_size: int,
        device: torch.device | str,
        telemetry: Telemetry,
        mesh: DeviceMesh | None = None,
        weights: StoredWeights | None = None,
    ):
        """With a `mesh` (`sharding.form_mesh`), construction needs no other rank, so ranks may load in waves.

        weights: stored weights for a policy on the meta device, of which each rank reads its shards.
        """
        self.config = config
        self.policy = policy
        self.device = torch.device(device)
        self.telemetry = telemetry
        self.ranks = Ranks(self.device)
        if (rank, world_size) != (self.ranks.rank, self.ranks.world_size):
            raise ValueError(f"rank {rank} of {world_size} was asked for, but the process group says {self.ranks}")
        spec: AlgorithmSpec = ALGORITHMS.get(config.algorithm.name)
        self.algorithm = spec.make(config.algorithm)
        self.has_critic = spec.has_critic
        if not self.has_critic:  # do not train a value head, nor keep optimizer state for it
            _freeze_value_head(policy.module)
        policy.device = self.device
        policy.use_attention(config.policy.attention, config.actor.param_precision)
        backend = chosen_backend(config.policy.compile_backend, self.device, is_learner=True)
        self._has_backend = backend is not None
        self._fallback = Fallback() if config.policy.compile_backend is None else None
        checkpointed = config.actor.activation_checkpointing
        progress = partial(telemetry.count, "first_passes_of_blocks")
        prepare_blocks(policy, backend, checkpointed, progress, self._fallback)
        if mesh is None:
            mesh = form_mesh(config.actor, self.ranks, self.device, config.cluster.start_deadline_s)
        self.sharded = ShardedPolicy(policy, config.actor, self.device, mesh, weights)
        actor = config.actor
        sft = config.sft
        rates = (actor.lr, actor.value_lr, actor.lr_warmup_steps)
        self.optimizer = GuardedOptimizer(policy.module, actor, *rates, decay=self._decay)
        self.imitation_optimizer = GuardedOptimizer(policy.module, actor, sft.lr, sft.lr, sft.lr_warmup_steps)
        self.reference: ReferenceWeights | None = None
        # Shards of the policy that learns, if another one acts; between updates the module has the one that acts, so
        # that it is sent, evaluated and exported. Within an update the two are exchanged. None: they are one.
        self.learned: dict[str, Tensor] | None = None
        self.num_updates = 0  # training steps done, counted over resumes

    def _decay(self) -> float:
        """Return the factor of the learning rates in this training step."""
        actor = self.config.actor
        return actor.lr_schedule.factor(self.num_updates / max(1, self.config.num_steps), actor.min_lr_ratio)

    @contextmanager
    def learning(self) -> Iterator[bool]:
        """Inside, the module has the policy that learns; afterwards the policy that acts has followed it.

        Yields whether it is the policy that acted.
        """
        if self.algorithm.acting_share(0) is None:
            yield True
            return
        is_first = self.learned is None
        if self.learned is None:
            self.learned = {name: shard.clone() for name, shard in trained_shards(self.sharded).items()}
        acting = self.learned
        held = trained_shards(self.sharded)
        for name, shard in held.items():
            _exchange(local(shard), local(acting[name]))
        yield is_first
        share = self.algorithm.acting_share(self.optimizer.num_steps) or 0.0
        for name, shard in trained_shards(self.sharded).items():
            kept = local(acting[name])
            kept.mul_(share).add_(local(shard), alpha=1.0 - share)
            _exchange(local(shard), kept)

    def rows_of_pass(self, wanted: int) -> int:
        """Return the rows that each forward pass must have: `wanted` if it is compiled, else any number, 0.

        A pass with another number of rows is compiled anew, for minutes, while other ranks wait in a collective.
        """
        is_compiled = self._has_backend and not (self._fallback is not None and self._fallback.is_taken)
        return wanted if is_compiled else 0

    def settle_kernels(self) -> None:
        """Let all ranks compute alike after their first passes, compiled or by torch's own kernels."""
        if self._fallback is not None:
            self._fallback.settle(self.ranks.gather, is_teller=self.ranks.rank == 0)

    def weight_layout(self, has_base: bool = False) -> list[tuple[str, Tensor]]:
        """Return (name, tensor without memory) of the weights for rollout workers, in order; no communication.

        has_base: rollout workers have the weights under the adapters already, see `RunConfig.are_adapters_apart`.
        """
        return [(wanted.name, wanted.meta()) for wanted in self._sent(has_base)]

    def named_weights(self, has_base: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, whole tensor) in the order of `weight_layout`, on the device, in the rollout's precision.

        Gathering is a collective: every rank must exhaust the iterator; ranks other than 0 drop the tensors. Raises
        RuntimeError while the policy is offloaded.
        """
        return self._counted(self.sharded.gathered(self._sent(has_base)))

    def _sent(self, has_base: bool) -> list[GatherSpec]:
        precision = torch_dtype(self.config.rollout.precision)
        return self.sharded.sent(precision, self.config.are_adapters_apart, has_base)

    def _counted(self, tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for gathered in tensors:
            self.telemetry.count("gathered_tensors")
            yield gathered

    def restore_reference(self, shards: dict[str, Tensor]) -> None:
        """Take the reference policy from a checkpoint; without shards the next update makes a new one."""
        self.reference = None
        if shards:
            self.reference = ReferenceWeights(self.sharded)
            self.reference.restore(shards)

    def forward(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, tokens: Tensor | None = None
    ) -> tuple[ActionDistribution, Tensor | None]:
        """Return the action distribution of M rows, and values float32 [M], or None without a value head.

        tokens: [M, ...], the only ones about which the distribution will be asked; None: it draws.
        """
        temperature = self.config.rollout.temperature
        if tokens is None:
            return self.policy(images, instructions, proprio, temperature)
        return self.policy.evaluate(images, instructions, proprio, temperature, tokens)

    def offload(self) -> Move:
        """Move shards, optimizer state and reference to host memory, so that another role can use the accelerator."""
        self.sharded.reshard()
        tensors: list[Tensor] = [*self.sharded.module.parameters(), *self.sharded.module.buffers()]
        for optimizer in (self.optimizer, self.imitation_optimizer):
            optimizer.clear()
            tensors += [t for state in optimizer.inner.state.values() for t in state.values() if isinstance(t, Tensor)]
        tensors += [] if self.reference is None else self.reference.shards.values()
        tensors += [] if self.learned is None else self.learned.values()
        return self.sharded.offloader.offload(tensors)

    def onload(self) -> Move:
        """Move back to the accelerator. Raises RunError if its memory is too small."""
        return self.sharded.offloader.onload()


def _freeze_value_head(policy: nn.Module) -> None:
    for name, parameter in policy.named_parameters():
        if "value_head." in name:
            parameter.requires_grad_(False)
