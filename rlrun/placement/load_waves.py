"""Waves in which workers load their models, so that each wave fits into the nodes' host memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rlrun.config.schema import Precision, RunConfig, ShardingStrategy
from rlrun.placement.plan import Plan, Slot

BASE_BYTES = 600_000_000  # of a process that has imported torch and transformers
NUM_BYTES = {Precision.fp32: 4, Precision.bf16: 2}
RESERVE = 0.1  # share of a node's memory for other processes


def load_bytes(config: RunConfig, num_parameters: int) -> dict[str, int]:
    """Map each role to the peak host memory of one worker while it loads.

    An actor rank reads its shards from the files, tensor by tensor; a rollout worker reads a whole copy, each in its
    own precision. Mapped files do not count, since the kernel can drop their pages. Env workers load no policy.
    """
    shards = num_parameters * NUM_BYTES[config.actor.optimizer_precision] // ranks_of_a_copy(config)
    return {
        "actor": BASE_BYTES + shards,
        "rollout": BASE_BYTES + NUM_BYTES[config.rollout.precision] * num_parameters,
        "env": 0,
    }


def ranks_of_a_copy(config: RunConfig) -> int:
    """Return the number of actor ranks that share one copy of the parameters."""
    actor = config.actor
    if actor.sharding is ShardingStrategy.no_shard:
        return 1
    if actor.sharding is ShardingStrategy.hybrid_shard:
        return actor.fsdp_size or actor.num_workers
    return actor.num_workers


def waves(slots: tuple[Slot, ...], bytes_per_worker: int, free_bytes: Mapping[str, int]) -> list[tuple[Slot, ...]]:
    """Divide workers into waves that load one after another.

    slots: workers of one role. free_bytes: node -> memory for loading; a missing node has no limit. In every wave each
    node loads as many workers as fit, but at least one: the doctor checks that one fits.

    Example: four workers of 30 GB on a node with 70 GB free load in two waves of two.
    """
    if bytes_per_worker <= 0:
        return [slots]
    waiting = list(slots)
    found: list[tuple[Slot, ...]] = []
    while waiting:
        room = {slot.node: max(1, free_bytes.get(slot.node, 2**62) // bytes_per_worker) for slot in waiting}
        wave = []
        for slot in waiting:
            if room[slot.node] > 0:
                room[slot.node] -= 1
                wave.append(slot)
        found.append(tuple(wave))
        taken = {slot.rank for slot in wave}
        waiting = [slot for slot in waiting if slot.rank not in taken]
    return found


def loading_room(plan: Plan, free_bytes: Mapping[str, int] | None = None) -> dict[str, int]:
    """Map each node to the bytes available for loading, according to the inventory.

    free_bytes: worker -> free memory that it measured on its node, an upper limit for that node.
    """
    room = {planned.node.name: int((1 - RESERVE) * planned.node.memory_bytes) for planned in plan.nodes}
    for slot in plan.slots:
        measured = (free_bytes or {}).get(slot.name)
        if measured is not None:
            room[slot.node] = min(room[slot.node], int((1 - RESERVE) * measured))
    return room
