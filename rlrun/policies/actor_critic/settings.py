"""The keys of policy.mlp and policy.cnn."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rlrun.config.sections import COUNT, Range, Section, bounded
from rlrun.system.local_files import read_json


@dataclass
class MlpSettings(Section):
    """Settings for policy.kind=mlp."""

    hidden_sizes: list[int] = bounded([64, 64], COUNT)
    initial_log_std: float = bounded(0.0, Range(-5, 2))  # of continuous actions, whose limits are -1 and 1
    normalize_observations: bool = False  # normalize proprioception by its running mean and deviation


@dataclass
class CnnSettings(MlpSettings):
    """Settings for policy.kind=cnn."""

    conv_channels: list[int] = bounded([16, 32, 64], COUNT)  # channels of each layer; each halves the image


MODEL_TYPE = "rlrun_actor_critic"
CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class ActorCriticConfig:
    """Sizes of a network. Example: HalfCheetah: num_actions 6, num_choices None, num_proprio 17, num_images 0."""

    num_actions: int  # A
    num_action_chunks: int  # C
    num_choices: int | None  # discrete: each action is one of 0..num_choices-1; None: continuous, Gaussian
    action_low: tuple[float, ...]  # A numbers; continuous actions: the network's -1
    action_high: tuple[float, ...]  # the network's 1
    num_proprio: int  # 0: no proprioception
    num_images: int  # 0: no images
    image_size: int
    hidden_sizes: tuple[int, ...]  # of the policy, after the convolutions
    value_hidden_sizes: tuple[int, ...]
    conv_channels: tuple[int, ...]  # layers that halve the image; only with images
    initial_log_std: float
    is_normalized: bool  # normalize proprioception by running statistics
    camera_names: tuple[str, ...] = ()  # num_images names, in order; (): unknown

    @property
    def num_tokens(self) -> int:
        """K = C*A."""
        return self.num_action_chunks * self.num_actions

    def save(self, folder: Path) -> None:
        """Write config.json."""
        described = {"model_type": MODEL_TYPE, **asdict(self)}
        (folder / CONFIG_FILE).write_text(json.dumps(described, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> ActorCriticConfig:
        """Read config.json. Raises KeyError for a missing entry, and ValueError for one that is no whole number."""
        found = read_json(folder / CONFIG_FILE)
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = field.name
            if name == "camera_names" and name not in found:
                continue
            if field.type == "int" and type(found[name]) is not int:
                raise ValueError(f"{name} is {found[name]!r}")
            values[name] = tuple(found[name]) if isinstance(found[name], list) else found[name]
        return cls(**values)
