"""FSDP2 over a policy: which ranks hold which shards, and when they are gathered."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterable, Iterator, Sequence, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from rlrun.actor.gathering import GatherSpec, gathered
from rlrun.actor.process_group import Ranks
from rlrun.config.schema import ActorConfig, ShardingStrategy
from rlrun.policies.adapters import adapters, is_adapter_name, matrix_names, plain_name, unchanging_names
from rlrun.policies.counts import replicates_frozen, unit_limit
from rlrun.policies.offloading import Offloader
from rlrun.policies.policy import torch_dtype
from rlrun.policies.weight_files import StoredWeights, fill
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.policies.policy import Policy


def fsdp_units(
    stacks: Sequence[Sequence[nn.Module]], width: int, outside: Set[nn.Parameter] = frozenset()
) -> list[list[nn.Module]]:
    """Divide every stack into units of consecutive blocks, in the order of the forward pass.

    stacks: of `Policy.stacks`. width: bytes of one gathered parameter. outside: parameters that FSDP does not hold;
    blocks that have no other are in no unit.

    Memory is that of units of one block: no unit is larger than the largest block, or than a size that does not matter.
    """
    sizes = [[(block, _num_bytes(block, width, outside)) for block in stack] for stack in stacks]
    limit = unit_limit([size for stack in sizes for _, size in stack])
    units: list[list[nn.Module]] = []
    for stack in sizes:
        room = 0
        for block, size in stack:
            if not size:
                continue
            if size > room:
                units.append([])
                room = limit
            units[-1].append(block)
            room -= size
    return units


def _num_bytes(block: nn.Module, width: int, outside: Set[nn.Parameter]) -> int:
    return width * sum(parameter.numel() for parameter in block.parameters() if parameter not in outside)


# the warning is about changing outputs in place, which the losses never do
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


class ShardedPolicy:
    """A policy sharded over all ranks; call `module` like the policy itself.

    FSDP units are made of blocks (`fsdp_units`); the root is the unit of the rest.

    | strategy | parameters | gathered for | gradients of micro-batches are reduced |
    |---|---|---|---|
    | full_shard | split over all ranks | one unit at a time | at once (least memory) |
    | shard_grad_op | split over all ranks | the whole batch | after the last micro-batch |
    | hybrid_shard | split inside a group of fsdp_size | one unit at a time | inside a group at once, then all |
    | no_shard | whole on every rank | nothing | after the last micro-batch |

    no_shard is a mesh of world_size replicas of groups of one, so gradients are averaged over all ranks. With
    `replicates_frozen` frozen parameters are plain tensors outside of FSDP, whole on every rank.
    """

    def __init__(
        self,
        policy: Policy,
        config: ActorConfig,
        device: torch.device,
        mesh: DeviceMesh,
        weights: StoredWeights | None = None,
    ):
        """Shard without communication, so that ranks may do it one after another.

        mesh: from `form_mesh`. weights: fill a policy on the meta device, each rank reading its own rows.
        """
        self._adapters = adapters(policy.module)
        names = [plain_name(name) for name, _ in policy.module.named_parameters()]
        self._unsent = unchanging_names(names, self._adapters.keys(), policy.frozen_names(), config.lora)
        self.mesh = mesh
        self.param_dtype = torch_dtype(config.param_precision)  # of gathered parameters
        self.is_replicated = self.mesh.ndim == 2
        self._keeps_gathered = config.keeps_gathered
        module = policy.module.train()
        _cast(module, config)
        stacks = policy.stacks()
        self.offloader = Offloader(device)  # for roles that share accelerators
        self.module: Any = module  # the policy's module
        outside = _outside(module, device) if replicates_frozen(config) else set()
        # FSDP cannot accumulate gradients with units that are never gathered
        unread = [] if self._keeps_gathered or outside else [[part] for part in _never_read(policy)]
        units = [*unread, *fsdp_units(stacks, self.param_dtype.itemsize, outside), [module]]
        self._shard(units, config, device, outside)
        if weights is not None:
            fill(module, weights, "cpu" if config.cpu_offload else device)

    def _shard(
        self, units: list[list[nn.Module]], config: ActorConfig, device: torch.device, outside: set[nn.Parameter]
    ) -> None:
        """Shard in place; the last unit, the whole module, becomes an FSDPModule."""
        precision = MixedPrecisionPolicy(
            param_dtype=torch_dtype(config.param_precision), reduce_dtype=torch_dtype(config.reduce_precision)
        )
        offload = CPUOffloadPolicy(pin_memory=device.type != "cpu") if config.cpu_offload else OffloadPolicy()
        for unit in units:
            fully_shard(
                unit,
                mesh=self.mesh,
                # the backward pass begins with the whole module's own parameters, so it would gather them again at once
                reshard_after_forward=unit is not units[-1] and not self._keeps_gathered,
                mp_policy=precision,
                offload_policy=offload,
                ignored_params=outside,
            )

    def begin_backward(self, is_last: bool) -> None:
        """Call before each forward-backward of an accumulated batch; is_last: the optimizer steps after it."""
        self.module.set_is_last_backward(is_last)
        if self._keeps_gathered:
            self.module.set_requires_gradient_sync(is_last)
            self.module.set_reshard_after_backward(is_last)
        elif self.is_replicated:
            self.module.set_requires_all_reduce(is_last)

    def reshard(self) -> None:
        """Free gathered parameters, so that `parameters()` are shards: a no-grad forward leaves the root gathered."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def shards(self) -> dict[str, Tensor]:
        """Return this rank's part of every parameter and saved buffer by name, without communication."""
        self.reshard()
        return {name: tensor.detach() for name, tensor in self.module.state_dict().items()}

    def policy_shards(self) -> list[tuple[str, Tensor]]:
        """Yield (the policy's name, this rank's part) for the tensors of a policy without adapters; no communication.

        `full_tensors` merges each with its adapter.
        """
        return [(plain_name(name), shard) for name, shard in self.shards().items() if not is_adapter_name(name)]

    def sent(self, dtype: torch.dtype, are_adapters_apart: bool, has_base: bool) -> list[GatherSpec]:
        """Return the tensors for rollout workers: trained ones, in `dtype`; no communication.

        are_adapters_apart: not merged, but the matrices of each adapter, and before them the weight that it changes,
        unless rollout workers have it (`has_base`). These are not cast, so that merging them gives the same bits.
        """
        specs = []
        for name, shard in self.policy_shards():
            if name in self._unsent:
                continue
            adapter = self._adapters.get(name)
            if adapter is None or not are_adapters_apart:
                specs.append(self._wanted(name, shard, dtype))
                continue
            matrices = (adapter.a.weight, adapter.b.weight)
            specs += [] if has_base else [GatherSpec(name, (shard,), None)]
            specs += [
                GatherSpec(matrix_name, (tensor,), None)
                for matrix_name, tensor in zip(matrix_names(name), matrices, strict=True)
            ]
        return specs

    def gathered(self, wanted: Iterable[GatherSpec]) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, whole tensor) on the device of the mesh. Every rank must exhaust the iterator.

        Raises RuntimeError while the policy is offloaded: the CPU would merge adapters, a hundred times as slowly.
        """
        self.offloader.require_device("gathering weights")
        return gathered(wanted, self.mesh.device_type)

    def full_tensors(
        self, shards: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, whole tensor) of each of the `shards`, merged with its adapter; see `gathered`.

        Floating-point tensors are cast to `dtype`, if given.
        """
        return self.gathered(self._wanted(name, shard, dtype) for name, shard in shards)

    def _wanted(self, name: str, shard: Tensor, dtype: torch.dtype | None) -> GatherSpec:
        adapter = self._adapters.get(name)
        if adapter is None:
            return GatherSpec(name, (shard,), dtype)
        return GatherSpec(name, (shard, adapter.a.weight, adapter.b.weight), dtype, adapter.scale)


def _never_read(policy: Policy) -> list[nn.Module]:
    """Return the outermost modules of which no forward pass reads a parameter.

    As units of their own they are never gathered; else the whole module's unit would gather them in every pass.
    """
    unread = policy.unread_names()
    modules = dict[str, nn.Module]()
    for name, module in policy.module.named_modules():
        parameter_names = [plain_name(f"{name}.{inner}") for inner, _ in module.named_parameters()]
        if (
            parameter_names
            and unread.issuperset(parameter_names)
            and not any(name.startswith(f"{outer}.") for outer in modules)
        ):
            modules[name] = module
    return list(modules.values())


def _outside(module: nn.Module, device: torch.device) -> set[nn.Parameter]:
    """Return the frozen parameters, on the device; FSDP moves nothing that it does not hold."""
    frozen = {parameter for parameter in module.parameters() if not parameter.requires_grad}
    for tensor in (*frozen, *module.buffers()):
        if not tensor.is_meta:  # else it gets its memory when it gets its values
            tensor.data = tensor.data.to(device)
    return frozen


def _cast(module: nn.Module, config: ActorConfig) -> None:
    """Cast trained parameters to the precision of master weights and optimizer state, frozen ones to that of
    computing."""
    trained = torch_dtype(config.optimizer_precision)
    frozen = torch_dtype(config.param_precision)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(trained if parameter.requires_grad else frozen)


def mesh_shape(config: ActorConfig, ranks: Ranks) -> tuple[int, ...]:
    """Return (ranks,) or (replicas, ranks per shard group). Raises RunError if groups do not divide the ranks.

    One rank of no_shard has no replicas: FSDP would all-reduce every gradient with itself.
    """
    if config.sharding is ShardingStrategy.no_shard and ranks.world_size > 1:
        return (ranks.world_size, 1)
    if config.sharding is not ShardingStrategy.hybrid_shard:
        return (ranks.world_size,)
    size = config.fsdp_size or _ranks_per_node(ranks)
    if ranks.world_size % size:
        raise RunError(
            f"Shard groups of {size} do not divide {ranks.world_size} actor ranks.",
            key="actor.fsdp_size",
            value=config.fsdp_size,
            remedy=f"Set it to a divisor of {ranks.world_size}.",
        )
    return (ranks.world_size // size, size)


def _ranks_per_node(ranks: Ranks) -> int:
    hosts = ranks.gather(socket.gethostname())
    counts = {hosts.count(host) for host in hosts}
    if len(counts) > 1 or hosts != sorted(hosts, key=hosts.index):
        raise RunError(
            "hybrid_shard needs equally many, consecutive actor ranks on every node.",
            key="actor.fsdp_size",
            value=None,
            cause=f"The ranks run on {', '.join(hosts)}.",
            remedy="Set actor.fsdp_size, or change the placement.",
        )
    return counts.pop()


def form_mesh(config: ActorConfig, ranks: Ranks, device: torch.device, timeout_s: float) -> DeviceMesh:
    """Make the groups of `sharding` and verify each by a reduction; all ranks call it.

    timeout_s: limit of every collective of a subgroup; torch's default is half an hour.
    """
    shape = mesh_shape(config, ranks)
    layout = torch.arange(ranks.world_size).view(shape)
    groups = [_own_group(layout.movedim(axis, -1).reshape(-1, size), timeout_s) for axis, size in enumerate(shape)]
    for group in groups:
        dist.all_reduce(torch.ones(1, device=device), group=group)
    names = ("replicate", "shard")[-len(shape) :]
    return DeviceMesh.from_group(groups if len(groups) > 1 else groups[0], device.type, layout, mesh_dim_names=names)


def _own_group(ranks_of_groups: Tensor, timeout_s: float) -> dist.ProcessGroup:
    """Return this rank's group among int [groups, ranks of each]; the default group if it has all ranks."""
    if len(ranks_of_groups) == 1:
        assert dist.group.WORLD is not None  # `process_group.join` came first
        return dist.group.WORLD
    group, _ = dist.new_subgroups_by_enumeration(ranks_of_groups.tolist(), timeout=timedelta(seconds=timeout_s))
    return group
