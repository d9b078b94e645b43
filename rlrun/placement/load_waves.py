"""In which order workers load their models, so that those that load together fit their node's memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rlrun.config.schema import Precision, RunConfig
from rlrun.placement.plan import Plan, Slot

BASE_BYTES = 600_000_000  # a process that has imported torch and transformers
NUM_BYTES = {Precision.fp32: 4, Precision.bf16: 2}
RESERVE = 0.1  # of a node's memory, for everything else that runs there


def load_bytes(config: RunConfig, num_parameters: int) -> dict[str, int]:
    """Role -> host memory of one worker while it loads; the whole policy goes through host memory.

    An actor rank reads single precision, then keeps its shards; a rollout worker reads its own precision.
    A file is mapped while it is read, so it counts once. Env workers load no policy.
    """
    return {
        "actor": BASE_BYTES + 4 * num_parameters,
        "rollout": BASE_BYTES + NUM_BYTES[config.rollout.precision] * num_parameters,
        "env": 0,
    }


def waves(slots: tuple[Slot, ...], bytes_per_worker: int, free_bytes: Mapping[str, int]) -> list[tuple[Slot, ...]]:
    """The workers in groups that load one after another.

    slots: of one role. free_bytes: node -> memory that loading may take; a node that is missing has no limit. In
    every wave each node has as many workers as fit, at least one: whether one fits at all is a matter of the doctor.

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
    """Node -> bytes that loading may take, by what the inventory says that it has.

    free_bytes: worker -> what it measured to be free on its node; the node then has no more room than that.
    """
    room = {planned.node.name: int((1 - RESERVE) * planned.node.memory_bytes) for planned in plan.nodes}
    for slot in plan.slots:
        measured = (free_bytes or {}).get(slot.name)
        if measured is not None:
            room[slot.node] = min(room[slot.node], int((1 - RESERVE) * measured))
    return room
