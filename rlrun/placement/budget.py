"""What a plan needs, in bytes: device memory per accelerator, and what one training step moves.

Estimates to plan by: weights, gradients and optimizer state are exact for the parameter count;
activations and library workspaces are not counted, so a full accelerator is refused, a near-full one is not.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.schema import PolicyConfig, Precision, RunConfig, ShardingStrategy, Simulator
from rlrun.placement.inventory import GIGABYTE, Inventory
from rlrun.placement.plan import Plan
from rlrun.placement.request import refused

NUM_BYTES = {Precision.fp32: 4, Precision.bf16: 2}
SIMULATOR_BYTES = {  # device memory of one env worker: process and scene, then of each further env
    Simulator.mujoco: (300_000_000, 5_000_000),
    Simulator.omnigibson: (8_200_000_000, 500_000_000),
}
_LOGPROB_TOKEN_BYTES = 4 + 1
_SMALL_VOCABULARY = 1024
_NUM_ACTION_DIMS = {"base": 3, "trunk": 4, "arm_left": 7, "gripper_left": 1, "arm_right": 7, "gripper_right": 1}
_NUM_PROPRIO = {"full_256": 256, "local_61": 61}


@dataclass(frozen=True)
class AcceleratorBudget:
    """Who holds how much of one accelerator. Example: needs (("actor/0", 15_000_000_000), …)."""

    node: str
    index: int
    model: str
    memory_bytes: int
    needs: tuple[tuple[str, int], ...]
    is_shared_in_turns: bool  # actor.cpu_offload: the actor leaves while others work

    @property
    def peak_bytes(self) -> int:
        """The most that is held at one time."""
        actor = sum(amount for worker, amount in self.needs if worker.startswith("actor/"))
        others = sum(amount for _, amount in self.needs) - actor
        return max(actor, others) if self.is_shared_in_turns else actor + others


@dataclass(frozen=True)
class Budget:
    """The bytes of a plan."""

    num_parameters: int
    accelerators: tuple[AcceleratorBudget, ...]
    weight_bytes: int  # one policy version, as it is sent to each rollout worker
    trajectory_bytes: int  # all trajectories of one training step, env to actor
    observation_bytes: int  # all observations of one training step, env to rollout


def budget(config: RunConfig, plan: Plan, inventory: Inventory) -> Budget:
    """Add up a plan. Raises RunError when an accelerator cannot hold its workers."""
    num_parameters = count_parameters(config.policy)
    sums = Budget(
        num_parameters,
        _accelerators(config, plan, inventory, num_parameters),
        num_parameters * NUM_BYTES[config.rollout.precision],
        *_step_bytes(config),
    )
    for accelerator in sums.accelerators:
        _check_room(accelerator)
    return sums


def count_parameters(policy: PolicyConfig) -> int:
    """Parameters of `policy.path`, from its safetensors headers; without a path, about those of a new policy."""
    files = sorted(Path(policy.path).glob("*.safetensors")) if policy.path is not None else []
    if files:
        return sum(_parameters_in(file) for file in files)
    tower = 12 * policy.vision_num_layers * policy.vision_hidden_size**2
    tower += 3 * policy.patch_size**2 * policy.vision_hidden_size
    width, inner = policy.llm_hidden_size, policy.llm_intermediate_size
    projector = 8 * policy.vision_hidden_size * (2 * policy.vision_hidden_size + width) + width**2
    llm = policy.llm_num_layers * (4 * width**2 + 3 * width * inner) + 2 * _SMALL_VOCABULARY * width
    return 2 * tower + projector + llm


def _parameters_in(file: Path) -> int:
    """Numbers in a safetensors file: its header is a length (8 bytes) and JSON."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            count = 1
            for size in tensor["shape"]:
                count *= size
            total += count
    return total


def actor_bytes(config: RunConfig, num_parameters: int) -> int:
    """Parameters, gradients, and optimizer state (two moments, and master weights where needed) of one rank."""
    actor = config.actor
    ranks = actor.num_workers
    shards = {
        ShardingStrategy.full_shard: (ranks, ranks),
        ShardingStrategy.shard_grad_op: (1, ranks),
        ShardingStrategy.hybrid_shard: (actor.fsdp_size or ranks,) * 2,
        ShardingStrategy.no_shard: (1, 1),
    }
    of_parameters, of_state = shards[actor.sharding]
    parameter, state = NUM_BYTES[actor.param_precision], NUM_BYTES[actor.optimizer_precision]
    master = state if state > parameter else 0
    gradient = NUM_BYTES[actor.reduce_precision]
    return num_parameters * parameter // of_parameters + num_parameters * (gradient + 2 * state + master) // of_state


def _accelerators(
    config: RunConfig, plan: Plan, inventory: Inventory, num_parameters: int
) -> tuple[AcceleratorBudget, ...]:
    base, per_env = SIMULATOR_BYTES[config.env.simulator]
    envs = config.env.num_envs // config.env.num_workers
    amounts = {
        "actor": actor_bytes(config, num_parameters),
        "rollout": num_parameters * NUM_BYTES[config.rollout.precision],
        "env": base + (envs - 1) * per_env,
    }
    needs: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for slot in plan.slots:
        for index in slot.accelerators:
            needs[slot.node, index].append((slot.name, amounts[slot.role] // len(slot.accelerators)))
    return tuple(
        AcceleratorBudget(
            node.name,
            index,
            device.model,
            device.memory_bytes,
            tuple(needs[node.name, index]),
            config.actor.cpu_offload,
        )
        for node in inventory.nodes
        for index, device in enumerate(node.accelerators)
        if (node.name, index) in needs
    )


def _check_room(accelerator: AcceleratorBudget) -> None:
    short = accelerator.peak_bytes - accelerator.memory_bytes
    if short <= 0:
        return
    listed = " + ".join(f"{worker} {amount / GIGABYTE:.1f} GB" for worker, amount in accelerator.needs)
    raise refused(
        f"Accelerator {accelerator.index} of node {accelerator.node} ({accelerator.model}, "
        f"{accelerator.memory_bytes / GIGABYTE:.1f} GB) is {short / GIGABYTE:.1f} GB short.",
        "placement.roles",
        cause=f"It would hold {listed}, activations not counted.",
        remedy="Move a role elsewhere, use more actor ranks, or set actor.cpu_offload=true so that roles take turns.",
    )


def _step_bytes(config: RunConfig) -> tuple[int, int]:
    """(trajectories, observations) of one training step."""
    env, algorithm = config.env, config.algorithm
    frame = len(env.cameras) * env.image_size**2 * 3 + 4 * _NUM_PROPRIO[env.proprio.value]
    dims = sum(_NUM_ACTION_DIMS[part] for part in env.controlled)
    chunk_length = config.policy.num_action_chunks
    tokens = chunk_length * dims * _LOGPROB_TOKEN_BYTES
    per_step = 4 + 4 + 2 + 3 + 4 + chunk_length * (4 + 1)  # values, next values, instruction, flags, version, rewards
    samples = env.num_envs * algorithm.horizon * algorithm.rollout_epochs
    return samples * (frame + tokens + per_step), samples * frame
