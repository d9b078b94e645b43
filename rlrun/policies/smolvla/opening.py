"""Opens the folder of a SmolVLA, rlrun's or LeRobot's, as a policy.

Importing this module imports transformers, which takes seconds: the spec does so only when a policy is opened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.flow_sde import FlowSde
from rlrun.policies.smolvla.checkpoint import CRITIC, CRITIC_FILE, NETWORK, RUN_FILE, RunSettings
from rlrun.policies.smolvla.folder import StoredSmolVLA, read_folder
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.policy import SmolVLAPolicy
from rlrun.policies.smolvla.processor import SmolVLAProcessor
from rlrun.policies.smolvla.settings import SmolVLASettings
from rlrun.policies.weight_files import read_json, refuse


def open_smolvla(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> SmolVLAPolicy:
    """Open a folder; a critic that it lacks begins anew, by the run's seed.

    run: the run that uses the policy; None: the policy acts only. Raises RunError that names what is missing or does
    not fit, and ValueError if a chunk has fewer actions than are executed.
    """
    own = SmolVLASettings() if run is None else run.policy.section(SmolVLASettings)
    stored = read_folder(folder, None if own.tokenizer_path is None else Path(own.tokenizer_path))
    settings = _settings(folder, stored, run)
    if settings.num_action_chunks > stored.config.chunk_size:
        raise ValueError(f"num_action_chunks={settings.num_action_chunks}, but chunk_size={stored.config.chunk_size}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if run is None else run.seed)
        policy = SmolVLAPolicy(
            SmolVLANetwork(stored.config),
            SmolVLAProcessor(stored.config, stored.tokenizer, stored.statistics, settings.num_proprio),
            FlowSde(settings.num_flow_steps, settings.noise_level),
            settings.num_action_chunks,
            settings.num_actions,
            settings.value_hidden_sizes,
            train_expert_only=run is not None and own.train_expert_only,
        )
    policy.module.load_state_dict(_weights(folder, stored, policy))
    policy.module.to(device, dtype)
    policy.device = device
    return policy


def _settings(folder: Path, stored: StoredSmolVLA, run: RunConfig | None) -> RunSettings:
    """Return the folder's settings, with the flow steps of the run; for a folder of LeRobot's all are of the run."""
    file = folder / RUN_FILE
    if run is None:
        if file.is_file():
            return RunSettings(**read_json(file))
        refuse(
            f"{folder} is a folder of LeRobot: it does not say how many actions a chunk executes.",
            "Open it with the configuration of a run (policy.path), which completes it.",
        )
    own = run.policy.section(SmolVLASettings)
    if file.is_file():
        found = RunSettings(**read_json(file))
        return replace(found, num_flow_steps=own.num_flow_steps, noise_level=own.noise_level)
    return RunSettings(
        num_action_chunks=run.policy.num_action_chunks,
        num_actions=stored.config.num_actions,
        num_proprio=stored.config.num_proprio if run.policy.use_proprio else 0,
        num_flow_steps=own.num_flow_steps,
        noise_level=own.noise_level,
        value_hidden_sizes=list(run.policy.value_hidden_sizes),
    )


def _weights(folder: Path, stored: StoredSmolVLA, policy: SmolVLAPolicy) -> dict[str, Tensor]:
    weights = {NETWORK + name: stored.weights.read(name) for name in stored.weights.in_order()}
    stored.weights.close()
    if (folder / CRITIC_FILE).is_file():
        return weights | load_file(folder / CRITIC_FILE)
    new = policy.module.state_dict()
    return weights | {name: value for name, value in new.items() if name.startswith(CRITIC)}
