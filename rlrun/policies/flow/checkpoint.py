"""A flow policy in a folder: LeRobot's files, and the critic and rlrun's settings beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.settings import FlowSettings
from rlrun.policies.lerobot.config import LeRobotConfig
from rlrun.policies.weight_files import read_json, refuse

RUN_FILE = "flow_policy.json"
CRITIC_FILE = "value_head.safetensors"
CRITIC = "value_head."  # before the critic's names in the module's state dict
NETWORK = "network."  # before LeRobot's names


@dataclass(frozen=True)
class RunSettings:
    """What LeRobot's config.json has no place for."""

    num_action_chunks: int  # C
    num_actions: int  # A
    num_proprio: int  # P; 0: no proprioception
    num_flow_steps: int
    noise_level: float
    value_hidden_sizes: list[int]
    processor: dict[str, Any] = field(default_factory=dict)  # what the kind's processor needs beside LeRobot's files


def save_policy(
    folder: str | Path,
    settings: RunSettings,
    named_tensors: Iterable[tuple[str, Tensor]],
    write_network: Callable[[Path, Iterable[tuple[str, Tensor]]], None],
) -> None:
    """Write everything that `opening.open_flow_policy` and LeRobot's class need. Tensors may arrive one by one.

    write_network: writes LeRobot's files of tensors with LeRobot's names.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    critic: dict[str, Tensor] = {}

    def of_network() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in named_tensors:
            if name.startswith(NETWORK):
                yield name.removeprefix(NETWORK), tensor
            else:
                critic[name] = tensor.detach().cpu().clone().contiguous()

    write_network(folder, of_network())
    if critic:
        save_file(critic, folder / CRITIC_FILE)
    (folder / RUN_FILE).write_text(json.dumps(asdict(settings), indent=2) + "\n")


def read_settings(
    folder: Path, config: LeRobotConfig, run: RunConfig | None, own: FlowSettings, processor: Mapping[str, Any]
) -> RunSettings:
    """Return the folder's settings, with the flow steps of the run; for a folder of LeRobot's all are of the run.

    processor: what a folder of LeRobot's does not say. Raises RunError for such a folder without a run.
    """
    file = folder / RUN_FILE
    if file.is_file():
        found = RunSettings(**read_json(file))
        return found if run is None else replace(found, num_flow_steps=own.num_flow_steps, noise_level=own.noise_level)
    if run is None:
        refuse(
            f"{folder} does not say how many actions a chunk executes: rlrun did not write it.",
            "Open it with the configuration of a run (policy.path), which completes it.",
        )
    num_proprio = config.num_proprio if run.policy.use_proprio else 0
    return run_settings(run, own, config.num_actions, num_proprio, processor)


def run_settings(
    run: RunConfig, own: FlowSettings, num_actions: int, num_proprio: int, processor: Mapping[str, Any] | None = None
) -> RunSettings:
    """Return the settings of a run. num_proprio: 0: it uses no proprioception."""
    return RunSettings(
        num_action_chunks=run.policy.num_action_chunks,
        num_actions=num_actions,
        num_proprio=num_proprio,
        num_flow_steps=own.num_flow_steps,
        noise_level=own.noise_level,
        value_hidden_sizes=list(run.policy.value_hidden_sizes),
        processor=dict(processor or {}),
    )


def read_critic(folder: Path) -> dict[str, Tensor] | None:
    """Return the critic's tensors by the module's names; None: the folder has no critic."""
    file = folder / CRITIC_FILE
    return load_file(file) if file.is_file() else None
