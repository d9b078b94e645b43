"""Memory for policy weights in transit from actor rank 0 to the rollout workers. Pure.

An HF rollout worker copies each bucket into its weights as it arrives. One with SGLang hands its engine a version as a
whole: all buckets stay in memory until the last one has arrived. A bucket is counted as `weight_sync.bucket_bytes`,
although one that holds a single larger tensor is as large as that.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from rlrun.config.schema import ClusterKind, RolloutBackendKind, RunConfig, WeightTransport
from rlrun.placement.plan import Plan

_BUCKETS_IN_FLIGHT = 2  # one is sent while the next one is packed


@dataclass(frozen=True)
class WeightBuffers:
    """Bytes by node, for nodes that need any.

    Example: a 7 B policy in bf16, actor and rollout workers on one node: host {"train-0": 15_000_000_000}, store {}.
    """

    host: dict[str, int]  # reused for every version, except in one process
    store: dict[str, int]  # only while a version is in transit


def weight_buffers(config: RunConfig, plan: Plan, weight_bytes: int) -> WeightBuffers:
    """Return the buffers for one policy version of `weight_bytes`, as it is sent."""
    if not plan.of("actor"):
        return WeightBuffers({}, {})
    actor, rollouts = plan.of("actor")[0].node, [slot.node for slot in plan.of("rollout")]
    in_flight = min(weight_bytes, _BUCKETS_IN_FLIGHT * config.weight_sync.bucket_bytes)
    received = weight_bytes if config.rollout.backend is RolloutBackendKind.sglang else in_flight
    is_on_devices = bool(device_bytes(config, plan))
    if config.cluster.kind is ClusterKind.local:
        return WeightBuffers({actor: weight_bytes}, {})
    if config.weight_sync.transport is WeightTransport.collective:
        host: dict[str, int] = defaultdict(int, {actor: 0 if is_on_devices else in_flight})
        for node in rollouts:  # each rollout worker has its own buffers
            host[node] += 0 if is_on_devices and received == in_flight else received
        return WeightBuffers(dict(host), {})
    if set(rollouts) == {actor}:  # one node: all workers share the actor's memory
        return WeightBuffers({actor: weight_bytes}, {})
    return WeightBuffers({}, {actor: in_flight} | dict.fromkeys(rollouts, received))


def device_bytes(config: RunConfig, plan: Plan) -> int:
    """Return the bytes of buckets that actor rank 0 and each rollout worker hold on an accelerator; 0 without NCCL."""
    is_nccl = config.weight_sync.transport is WeightTransport.collective and plan.sync_backend.value == "nccl"
    return _BUCKETS_IN_FLIGHT * config.weight_sync.bucket_bytes if is_nccl else 0
