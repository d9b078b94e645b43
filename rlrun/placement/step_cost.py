"""Traffic of a training step: bytes on every link between nodes, and in each node's object store."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import ClusterKind, RunConfig, ShardingStrategy, WeightTransport
from rlrun.placement.inventory import GIGABYTE, NodeInfo
from rlrun.placement.memory import weight_buffers
from rlrun.placement.plan import Plan, refused
from rlrun.placement.workload import Workload
from rlrun.policies.counts import PolicyCounts, replicates_frozen

_NUMBER_BYTES = 4  # of a log-probability, or a coordinate of an action


@dataclass(frozen=True)
class StepBytes:
    """Bytes of one training step over all envs. Example: StepBytes(3_200_000_000, 3_300_000_000, 40_000_000)."""

    observations: int  # env -> rollout
    trajectories: int  # env -> actor
    actions: int  # rollout -> env


@dataclass(frozen=True)
class LinkBudget:
    """Traffic of one direction between two nodes. Example: LinkBudget("sim-0", "train-0", 6_500_000_000, 5.2)."""

    source: str
    target: str
    num_bytes: int
    seconds: float  # at placement.link_gbit_per_s


@dataclass(frozen=True)
class StoreBudget:
    """What the object store of one node's Ray must hold at one time.

    Example: StoreBudget(NodeInfo("sim-0", …), 8_000_000_000)
    """

    node: NodeInfo
    needed_bytes: int

    @property
    def spilled_bytes(self) -> int:
        """Bytes that do not fit into the store."""
        store_bytes = self.node.object_store_bytes
        return max(0, self.needed_bytes - store_bytes) if store_bytes is not None else 0


def step_bytes(work: Workload) -> StepBytes:
    """Compute bytes from the shapes of the messages."""
    config = work.config
    env = config.env
    spaces = work.spaces
    frame = spaces.num_images * env.image_size**2 * 3 + 4 * spaces.num_proprio
    chunk_length = config.policy.num_action_chunks
    numbers = chunk_length * spaces.num_actions
    per_step = 4 + 4 + 2 + 3 + 4 + chunk_length * (4 + 1)  # values, next values, instruction, flags, version, rewards
    if ALGORITHMS.get(config.algorithm.name).rollout(config.algorithm).needs_next_proprio:
        per_step += 4 * spaces.num_proprio
    samples = config.samples_per_step
    logprobs = numbers * _NUMBER_BYTES + work.counts.choice_bytes
    return StepBytes(
        samples * frame, samples * (frame + logprobs + per_step), samples * (numbers * _NUMBER_BYTES + logprobs)
    )


def links(work: Workload, plan: Plan, step: StepBytes, weight_bytes: int) -> tuple[LinkBudget, ...]:
    """Return all pairs of nodes with traffic in a training step, the busiest first."""
    config = work.config
    amounts: dict[tuple[str, str], int] = defaultdict(int)
    envs = plan.of("env")
    rollouts = plan.of("rollout")
    actors = plan.of("actor")
    if not (envs and rollouts and actors):
        return ()  # no training step
    for slot in envs:
        partner = rollouts[slot.rank * len(rollouts) // len(envs)]
        amounts[slot.node, partner.node] += step.observations // len(envs)
        amounts[partner.node, slot.node] += step.actions // len(envs)
    for env, actor, share in _shards(len(envs), len(actors)):
        amounts[envs[env].node, actors[actor].node] += int(step.trajectories * share)
    takers = [rollouts[way.rollout].node for way in work.ways(plan) if way.transport is not WeightTransport.device]
    if config.weight_sync.transport is not WeightTransport.collective:
        takers = list(dict.fromkeys(takers))  # a node's store receives them once
    for node in takers:
        amounts[actors[0].node, node] += weight_bytes
    for source, target, num_bytes in _fsdp(config, [slot.node for slot in actors], work.counts):
        amounts[source, target] += num_bytes
    per_second = config.placement.link_gbit_per_s * 1e9 / 8
    found = [LinkBudget(*pair, n, n / per_second) for pair, n in amounts.items() if pair[0] != pair[1] and n]
    return tuple(sorted(found, key=lambda link: -link.num_bytes))


def _shards(num_envs: int, num_actors: int) -> list[tuple[int, int, float]]:
    """Return (env worker, actor rank, share of all envs); workers and ranks own contiguous, equal parts."""
    # position in units of 1 / (num_envs * num_actors)
    found = []
    env = 0
    actor = 0
    position = 0
    while env < num_envs and actor < num_actors:
        end = min((env + 1) * num_actors, (actor + 1) * num_envs)
        found.append((env, actor, (end - position) / (num_envs * num_actors)))
        position = end
        env = env + (end == (env + 1) * num_actors)
        actor = actor + (end == (actor + 1) * num_envs)
    return found


def _fsdp(config: RunConfig, nodes: list[str], counts: PolicyCounts) -> list[tuple[str, str, int]]:
    """Return the traffic of a ring over the ranks, from each node to the next; none if all ranks share a node.

    Every micro batch gathers the sharded parameters for its forward and its backward pass (full_shard) and reduces the
    gradients of the trained ones once.
    """
    hops = [(a, b) for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True) if a != b]
    actor = config.actor
    algorithm = config.algorithm
    samples = config.samples_per_step * algorithm.update_epochs
    micro_batches = samples // len(nodes) // actor.micro_batch_size
    gathers = {ShardingStrategy.full_shard: 2, ShardingStrategy.shard_grad_op: 1}.get(actor.sharding, 0)
    reductions = 1 if actor.sharding in (ShardingStrategy.full_shard, ShardingStrategy.shard_grad_op) else 2
    sharded = counts.num_trained + (0 if replicates_frozen(actor) else counts.num_frozen - counts.num_unread)
    gathered = gathers * actor.param_precision.num_bytes * sharded
    reduced = reductions * actor.reduce_precision.num_bytes * counts.num_trained
    return [(a, b, int((gathered + reduced) * micro_batches * (1 - 1 / len(nodes)))) for a, b in hops]


def stores(work: Workload, plan: Plan, step: StepBytes, weight_bytes: int) -> tuple[StoreBudget, ...]:
    """Return the bytes that each node's object store must hold at one time.

    Raises RunError if store and spill disk are too small.

    Trajectories lie where their env worker is until the update is over, and come to the nodes of the actor ranks
    that train on them. Those of a step that is collected ahead lie beside them. weight_bytes: one policy version, as it
    is sent.
    """
    envs = plan.of("env")
    actors = plan.of("actor")
    if not (envs and actors):
        return ()  # no training step
    parts: dict[str, set[tuple[int, int]]] = defaultdict(set)
    ahead: dict[str, float] = defaultdict(float)  # share of a step
    shares = {(env, actor): share for env, actor, share in _shards(len(envs), len(actors))}
    for (env, actor), share in shares.items():
        parts[envs[env].node].add((env, actor))
        parts[actors[actor].node].add((env, actor))
        ahead[envs[env].node] += share if work.config.collects_ahead else 0.0
    weights = weight_buffers(work, plan, weight_bytes).store
    found = []
    for planned in plan.nodes:
        node = planned.node
        num_steps = sum(shares[part] for part in parts[node.name]) + ahead[node.name]
        needed = int(step.trajectories * num_steps) + weights.get(node.name, 0)
        if needed:
            store = StoreBudget(node, needed)
            found.append(store)
            if work.config.cluster.kind is ClusterKind.ray:
                _check_spill(store, work.config.collects_ahead)
    return tuple(found)


def _check_spill(store: StoreBudget, is_ahead: bool) -> None:
    node = store.node
    if node.object_store_bytes is None or node.spill_free_bytes is None:
        return
    short = store.spilled_bytes - node.spill_free_bytes
    if short <= 0:
        return
    raise refused(
        f"Node {node.name} has {short / GIGABYTE:.2f} GB too little room for the objects of a training step.",
        "placement.nodes",
        node.spill_dir,
        cause=f"It must hold {store.needed_bytes / GIGABYTE:.2f} GB of trajectories and weights: its object store has "
        f"{node.object_store_bytes / GIGABYTE:.2f} GB, and {node.spill_dir or 'its spill disk'} has room for "
        f"{node.spill_free_bytes / GIGABYTE:.2f} GB of the {store.spilled_bytes / GIGABYTE:.2f} GB left over.",
        remedy="Give the node's group spill_dirs on a larger disk, raise cluster.object_store_bytes, or collect less "
        "per step (algorithm.horizon, algorithm.rollout_epochs, env.num_envs, env.image_size)."
        + (" rlrun.train keeps the trajectories of one step, not of two." if is_ahead else ""),
    )
