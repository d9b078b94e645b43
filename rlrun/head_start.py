"""A head start: env and rollout workers act with the first policy's folder while the actor workers come up.

Where all workers share a few cores, a start takes as long as what they import. What the first evaluation needs is then
started first, and the actor behind it. Elsewhere the collectives are proved before any model is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cluster.launch import running_cluster
from rlrun.config.schema import ClusterKind, RunConfig, WeightTransport
from rlrun.placement.load_waves import load_bytes, loading_room
from rlrun.placement.plan import Plan
from rlrun.placement.policy_size import count_parameters
from rlrun.training.warm_start import policy_at_hand

if TYPE_CHECKING:
    from rlrun.training.session import Session

LATER = ("actor",)  # what a head start leaves for later


def policy_to_act_with(session: Session) -> Path | None:
    """The first policy of a fresh run on this machine's cores, where it is at hand; None: no head start."""
    config = session.config
    is_alone = config.cluster.kind is ClusterKind.ray and running_cluster(config) is None
    is_on_cores = not any(slot.accelerators for slot in session.plan.slots)
    is_collective = config.weight_sync.transport is WeightTransport.collective  # its mesh comes before models
    if not is_alone or not is_on_cores or is_collective or config.placement.offload:
        return None
    if _has_checkpoints(config, session.run_dir):
        return None
    policy = policy_at_hand(config)
    return policy if policy is not None and _fits(config, session.plan) else None


def _has_checkpoints(config: RunConfig, run_dir: Path) -> bool:
    """Whether there may be something to resume."""
    wanted = config.checkpoint.resume
    return wanted is not None and (wanted != "auto" or (run_dir / "checkpoints").exists())


def _fits(config: RunConfig, plan: Plan) -> bool:
    """Whether the models of all workers can be loaded at the same time."""
    each, room = load_bytes(config, count_parameters(config)), loading_room(plan)
    needed = dict.fromkeys(room, 0)
    for slot in plan.slots:
        needed[slot.node] += each[slot.role]
    return all(needed[node] <= room[node] for node in room)
