"""Opens the folder of a flow policy, rlrun's or LeRobot's: whole, or without memory to be sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.lerobot_config import LeRobotConfig
from rlrun.policies.flow.method import ChunkShape
from rlrun.policies.flow.policy import NETWORK, RUN_FILE, FlowPolicy, RunSettings, read_heads, read_settings
from rlrun.policies.flow.settings import FlowSettings, Trains, trained_parts
from rlrun.policies.weight_files import StoredWeights, WeightFiles, fill, read_json, refuse
from rlrun.system.errors import ExitStatus, RunError

PolicyType = TypeVar("PolicyType", bound=FlowPolicy)


@dataclass(frozen=True, eq=False)
class FlowFolder(Generic[PolicyType]):
    """A policy folder that was checked to be complete; its weights are still on disk."""

    folder: Path
    config: LeRobotConfig
    weights: WeightFiles  # with the names of the network
    own: FlowSettings  # the run's settings of the kind
    # (settings, what trains) -> the policy with new weights, on the default device
    new: Callable[[RunSettings, Trains], PolicyType]
    processor: Mapping[str, Any] = field(default_factory=dict)  # RunSettings.processor of a folder without it


def open_to_shard(stored: FlowFolder[PolicyType], run: RunConfig) -> tuple[PolicyType, StoredWeights]:
    """Return the policy without memory, with the adapters of `actor.lora` if any, and its weights.

    Raises as `open_whole`.
    """
    policy, weights = _without_memory(stored, run)
    if run.actor.lora.rank:
        from rlrun.policies.adapters import add_adapters  # importing peft takes seconds

        add_adapters(policy, run.actor.lora)
    return policy, weights


def open_with_adapters(
    stored: FlowFolder[PolicyType], dtype: torch.dtype, device: torch.device, run: RunConfig
) -> PolicyType:
    """Return the whole policy on `device`, with adapters that change nothing until the first weights arrive."""
    return _filled(*open_to_shard(stored, run), dtype, device)


def open_whole(
    stored: FlowFolder[PolicyType], dtype: torch.dtype, device: torch.device, run: RunConfig | None
) -> PolicyType:
    """Return the whole policy on `device`. Heads that the folder lacks are drawn by the run's seed.

    run: the run that uses the policy; None: the policy acts only. Raises RunError for a folder without rlrun's
    settings and no run, and ValueError if a chunk has fewer actions than are executed.
    """
    return _filled(*_without_memory(stored, run), dtype, device)


def _filled(policy: PolicyType, weights: StoredWeights, dtype: torch.dtype, device: torch.device) -> PolicyType:
    fill(policy.module.to(dtype), weights, device)
    policy.device = device
    return policy


def _without_memory(stored: FlowFolder[PolicyType], run: RunConfig | None) -> tuple[PolicyType, StoredWeights]:
    settings = read_settings(stored.folder, stored.config, run, stored.own, stored.processor)
    _require_features(stored)
    if settings.num_action_chunks > stored.config.chunk_size:
        refuse(
            f"The policy in {stored.folder} plans {stored.config.chunk_size} actions at a time (chunk_size), and the "
            f"run executes {settings.num_action_chunks}.",
            f"Set policy.num_action_chunks={stored.config.chunk_size} or less.",
        )
    trains = Trains.everything if run is None else trained_parts(stored.own, is_new=run.policy.path is None)
    with torch.device("meta"):
        policy = stored.new(settings, trains)
    stored.weights.rename(lambda name: NETWORK + name)
    seed = 0 if run is None else run.seed
    return policy, StoredWeights(stored.weights, _heads(stored.folder, policy, seed), seed)


def _require_features(stored: FlowFolder[PolicyType]) -> None:
    """Raise RunError if config.json does not say what the policy sees and does."""
    config = stored.config
    sizes = {"camera in input_features": len(config.cameras), "'action' in output_features": config.num_actions}
    for name, size in sizes.items():
        if size < 1:
            refuse(
                f"config.json of the policy in {stored.folder} names no {name}.",
                "Take the config.json that LeRobot wrote at the end of a training on the robot's data.",
            )


def _heads(folder: Path, policy: FlowPolicy, seed: int) -> Mapping[str, Callable[[], Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tensors = policy.module.new_heads()
    stored = read_heads(folder)  # some may belong to other settings
    fit = {name for name in stored.keys() & tensors.keys() if stored[name].shape == tensors[name].shape}
    tensors |= {name: stored[name] for name in fit}
    return {name: lambda tensor=tensor: tensor for name, tensor in tensors.items()}  # type: ignore[misc]


NOISE_FILE, NOISE = "first_noise.safetensors", "noise"
REMARK = (
    f"LeRobot draws the noise that a chunk begins with. rlrun evaluates from the numbers in {NOISE_FILE}: "
    "predict_action_chunk(batch, noise=load_file(…)['noise']) begins with them."
)


def settings_to_export(folder: Path) -> RunSettings:
    """Return how a policy acts. Raises RunError for one that LeRobot's class cannot act like."""
    file = folder / RUN_FILE
    if not file.is_file():
        refuse_export(f"rlrun did not write the policy in {folder}.", "LeRobot opens the folders that it wrote itself.")
    settings = RunSettings.of(read_json(file))
    if settings.steering is not None:
        refuse_export(
            f"The policy in {folder} is steered: DSRL learned the noise of the flow's beginning, which LeRobot draws.",
            "Export the policy that DSRL began with (policy.path).",
        )
    if not settings.num_proprio:
        refuse_export(
            f"The policy in {folder} was trained without the robot's state, which LeRobot's class always reads.",
            "Train with policy.use_proprio=true.",
        )
    return settings


def stored_tensors(weights: WeightFiles) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors one by one, in the types on disk."""
    return ((name, weights.read(name)) for name in weights.in_order())


def write_first_noise(folder: Path, config: LeRobotConfig, settings: RunSettings) -> None:
    """Write the noise from which rlrun evaluates, float32 [1, S, D], as LeRobot's methods take it."""
    shape = ChunkShape(config.chunk_size, config.max_action_dim, settings.num_action_chunks, settings.num_actions)
    save_file({NOISE: shape.fixed_noise(1)}, folder / NOISE_FILE)


def refuse_export(message: str, remedy: str) -> NoReturn:
    """Raise a RunError about a policy that LeRobot's class cannot hold."""
    raise RunError(message, remedy=remedy, exit_status=ExitStatus.bad_input)
