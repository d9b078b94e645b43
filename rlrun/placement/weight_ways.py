"""The way of a policy version from the actor ranks to each rollout worker, picked from the plan.

| way | to rollout workers |
|---|---|
| memory of their accelerator, by CUDA IPC | of rollout.backend=hf that share it with an actor rank, both resident |
| shared memory | the others, if all of them are on the node of actor rank 0 |
| object store | the others, if not |
| collective | all of them, with weight_sync.transport=collective |

By the first way the rank on the same accelerator sends, since all ranks gather the weights anyway; else rank 0 sends.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.schema import ClusterKind, RolloutBackendKind, RunConfig, WeightTransport
from rlrun.placement.plan import Plan, PlannedNode, Slot, refused
from rlrun.system.errors import RunError

_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_NEAR = "an actor rank is on the same one, and both stay there"


@dataclass(frozen=True)
class Way:
    """The way to one rollout worker. Example: Way(3, WeightTransport.device, 3, False, "an actor rank is on …")."""

    rollout: int
    transport: WeightTransport
    sender: int  # actor rank
    is_shared: bool  # through shared memory, not through the object store
    why: str

    def name(self, plan: Plan) -> str:
        """Example: "memory of their accelerators (CUDA IPC)"."""
        if self.transport is WeightTransport.device:
            return "memory of their accelerators (CUDA IPC)"
        if self.transport is WeightTransport.collective:
            return f"a collective over {plan.sync_backend.value}"
        return "shared memory" if self.is_shared else "the object store"


def weight_ways(config: RunConfig, plan: Plan, has_ipc: bool = True) -> tuple[Way, ...]:
    """Return the way to each rollout worker, by rank; none where no actor rank or no rollout worker is planned.

    has_ipc: whether the system lets processes open each other's device memory. Raises RunError if
    weight_sync.transport=device is asked for and a rollout worker cannot have it.
    """
    actors = plan.of("actor")
    rollouts = plan.of("rollout")
    wanted = config.weight_sync.transport
    if not actors:
        return ()
    if wanted is WeightTransport.collective:
        return tuple(Way(slot.rank, wanted, 0, False, "weight_sync.transport=collective") for slot in rollouts)
    senders = {(slot.node, slot.accelerators): slot for slot in actors if slot.accelerators}
    nodes = {planned.node.name: planned for planned in plan.nodes}
    near: dict[int, Way] = {}
    obstacles: dict[int, str] = {}
    for slot in rollouts:
        sender = senders.get((slot.node, slot.accelerators))
        obstacle = _obstacle(config, slot, sender, nodes[slot.node], has_ipc)
        if obstacle and wanted is WeightTransport.device:
            raise _refusal(slot, obstacle)
        if wanted is WeightTransport.object_store:
            obstacle = "weight_sync.transport=object_store"
        if obstacle or sender is None:
            obstacles[slot.rank] = obstacle
        else:
            near[slot.rank] = Way(slot.rank, WeightTransport.device, sender.rank, False, _NEAR)
    from_host = {rollouts[rank].node for rank in obstacles}
    is_shared = config.cluster.kind is ClusterKind.ray and from_host == {actors[0].node}
    others = {rank: Way(rank, WeightTransport.object_store, 0, is_shared, why) for rank, why in obstacles.items()}
    return tuple((near | others)[slot.rank] for slot in rollouts)


def _obstacle(config: RunConfig, rollout: Slot, sender: Slot | None, planned: PlannedNode, has_ipc: bool) -> str:
    """Return what keeps an actor rank from writing into the device memory of a rollout worker; "": nothing."""
    if config.cluster.kind is ClusterKind.local:
        return "actor and rollout are in one process"
    if config.rollout.backend is not RolloutBackendKind.hf:
        return f"rollout.backend={config.rollout.backend.value} takes weights from host memory"
    if config.placement.offload:
        return "placement.offload=true: it has nothing on the accelerator while the actor sends"
    if not rollout.accelerators:
        return "it runs without an accelerator (CUDA)"
    if sender is None:
        return "no actor rank is on its accelerator"
    if planned.node.accelerators[rollout.accelerators[0]].is_fake:
        return "its accelerator is declared for a test and does not exist"
    environment = {setting.name: setting.value for setting in rollout.environment}
    if any("expandable_segments:true" in environment.get(name, "").lower() for name in _ALLOCATORS):
        return (
            f"placement.nodes.{planned.group}.environment gives its allocator expandable segments, which CUDA IPC "
            "cannot open"
        )
    return "" if has_ipc else "the system has no CUDA IPC"


def _refusal(slot: Slot, obstacle: str) -> RunError:
    return refused(
        f"{slot.name} cannot get weights through memory of its accelerator.",
        "weight_sync.transport",
        WeightTransport.device.value,
        cause=f"{obstacle[0].upper()}{obstacle[1:]}.",
        remedy="Leave weight_sync.transport out: the plan then picks this way where it is possible. Or put an actor "
        "rank on the accelerator of every rollout worker, with rollout.backend=hf and without placement.offload.",
    )
