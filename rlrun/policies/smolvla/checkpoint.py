"""A policy in a folder: LeRobot's files, which its classes open, and the critic and rlrun's settings beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from rlrun.policies.smolvla.config import SmolVLAConfig
from rlrun.policies.smolvla.folder import write_folder
from rlrun.policies.smolvla.processor import SmolVLAProcessor

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


def save_policy(
    folder: str | Path,
    config: SmolVLAConfig,
    processor: SmolVLAProcessor,
    settings: RunSettings,
    named_tensors: Iterable[tuple[str, Tensor]],
) -> None:
    """Write everything that `opening.open_smolvla` and LeRobot's class need. Tensors may arrive one by one."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    critic: dict[str, Tensor] = {}

    def of_network() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in named_tensors:
            if name.startswith(NETWORK):
                yield name.removeprefix(NETWORK), tensor
            else:
                critic[name] = tensor.detach().cpu().clone().contiguous()

    write_folder(folder, config, processor.tokenizer, processor.statistics, of_network())
    if critic:
        save_file(critic, folder / CRITIC_FILE)
    (folder / RUN_FILE).write_text(json.dumps(asdict(settings), indent=2) + "\n")
