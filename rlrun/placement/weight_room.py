"""Memory for policy weights on their way from actor rank 0 to the rollout workers: on hosts, or in object stores. Pure.

A rollout worker takes a version as a whole, so that none is ever half in use: until its last bucket has come, all of
them lie somewhere.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from rlrun.config.schema import ClusterKind, RunConfig, WeightTransport
from rlrun.placement.plan import Plan

_BUCKETS_UNDER_WAY = 2  # one travels, the next one is packed


@dataclass(frozen=True)
class WeightRoom:
    """Bytes by node; nodes that need none are left out.

    Example: a 7 B policy in bf16, actor and rollout workers on one node: host {"train-0": 15_000_000_000}, store {}.
    """

    host: dict[str, int]  # kept from version to version, except in one process
    store: dict[str, int]  # only while a version travels


def weight_room(config: RunConfig, plan: Plan, weight_bytes: int) -> WeightRoom:
    """weight_bytes: one version, as it is sent."""
    actor, rollouts = plan.of("actor")[0].node, [slot.node for slot in plan.of("rollout")]
    under_way = min(weight_bytes, _BUCKETS_UNDER_WAY * config.weight_sync.bucket_bytes)
    if config.cluster.kind is ClusterKind.local:
        return WeightRoom({actor: weight_bytes}, {})
    if config.weight_sync.transport is WeightTransport.collective:
        host: dict[str, int] = defaultdict(int, {actor: under_way})
        for node in rollouts:  # each has buffers of its own
            host[node] += weight_bytes
        return WeightRoom(dict(host), {})
    if set(rollouts) == {actor}:  # memory that they all see
        return WeightRoom({actor: weight_bytes}, {})
    return WeightRoom({}, {actor: under_way} | dict.fromkeys(rollouts, weight_bytes))
