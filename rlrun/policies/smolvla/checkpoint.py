"""A policy in a folder: LeRobot's files, which its classes open, and the critic and rlrun's settings beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.flow_sde import FlowSde
from rlrun.policies.smolvla.folder import StoredSmolVLA, read_folder, write_folder
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.processor import SmolVLAProcessor
from rlrun.policies.smolvla.settings import SmolVLASettings
from rlrun.policies.weight_files import read_json, refuse

if TYPE_CHECKING:
    from rlrun.policies.smolvla.policy import SmolVLAPolicy

RUN_FILE = "rlrun.json"  # what LeRobot's config.json has no place for
CRITIC_FILE = "value_head.safetensors"
CRITIC = "value_head."
NETWORK = "network."


@dataclass(frozen=True)
class RunSettings:
    """What a run adds to LeRobot's folder."""

    num_action_chunks: int  # C
    num_actions: int  # A
    num_proprio: int  # P; 0: no proprioception
    num_flow_steps: int
    noise_level: float
    value_hidden_sizes: list[int]

    @classmethod
    def of(cls, folder: Path, stored: StoredSmolVLA, run: RunConfig | None) -> RunSettings:
        """Return those of the folder, with the flow steps of the run; for LeRobot's own folder all are of the run.

        Raises RunError without a run, if the folder has none.
        """
        file = folder / RUN_FILE
        own = None if run is None else run.policy.section(SmolVLASettings)
        if file.is_file():
            found = read_json(file)
            if own is not None:
                found |= {"num_flow_steps": own.num_flow_steps, "noise_level": own.noise_level}
            return cls(**found)
        if run is None or own is None:
            refuse(
                f"{folder} is a folder of LeRobot: it does not say how many actions a chunk executes.",
                "Open it with the configuration of a run (policy.path), which completes it.",
            )
        config = stored.config
        return cls(
            num_action_chunks=run.policy.num_action_chunks,
            num_actions=config.num_actions,
            num_proprio=config.num_proprio if run.policy.use_proprio else 0,
            num_flow_steps=own.num_flow_steps,
            noise_level=own.noise_level,
            value_hidden_sizes=list(run.policy.value_hidden_sizes),
        )


def save_policy(folder: str | Path, policy: SmolVLAPolicy, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write everything that `open_smolvla` and LeRobot's class need. Tensors may arrive one by one."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    critic: dict[str, Tensor] = {}

    def of_network() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in named_tensors:
            if name.startswith(NETWORK):
                yield name.removeprefix(NETWORK), tensor
            else:
                critic[name] = tensor.detach().cpu().clone().contiguous()

    processor = policy.processor
    write_folder(folder, policy.config, processor.tokenizer, processor.statistics, of_network())
    if critic:
        save_file(critic, folder / CRITIC_FILE)
    shape = policy.shape
    settings = RunSettings(
        num_action_chunks=shape.num_executed,
        num_actions=shape.num_actions,
        num_proprio=processor.num_proprio,
        num_flow_steps=policy.sde.num_steps,
        noise_level=policy.sde.noise_level,
        value_hidden_sizes=policy.value_hidden_sizes,
    )
    (folder / RUN_FILE).write_text(json.dumps(asdict(settings), indent=2) + "\n")


def open_smolvla(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> SmolVLAPolicy:
    """Open a folder, rlrun's or LeRobot's; a critic that it lacks begins anew, by the run's seed.

    Raises RunError that names what is missing or does not fit.
    """
    from rlrun.policies.smolvla.policy import SmolVLAPolicy as Class

    own = None if run is None else run.policy.section(SmolVLASettings)
    tokenizer = None if own is None or own.tokenizer_path is None else Path(own.tokenizer_path)
    stored = read_folder(folder, tokenizer)
    settings = RunSettings.of(folder, stored, run)
    if settings.num_action_chunks > stored.config.chunk_size:
        raise ValueError(f"num_action_chunks={settings.num_action_chunks}, but chunk_size={stored.config.chunk_size}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if run is None else run.seed)
        policy = Class(
            SmolVLANetwork(stored.config),
            SmolVLAProcessor(stored.config, stored.tokenizer, stored.statistics, settings.num_proprio),
            FlowSde(settings.num_flow_steps, settings.noise_level),
            settings.num_action_chunks,
            settings.num_actions,
            settings.value_hidden_sizes,
            train_expert_only=own is not None and own.train_expert_only,
        )
    weights = {NETWORK + name: stored.weights.read(name) for name in stored.weights.in_order()}
    stored.weights.close()
    if (folder / CRITIC_FILE).is_file():
        weights |= load_file(folder / CRITIC_FILE)
    else:
        weights |= {name: value for name, value in policy.module.state_dict().items() if name.startswith(CRITIC)}
    policy.module.load_state_dict(weights)
    policy.module.to(device, dtype)
    policy.device = device
    return policy
