"""config.json and names of openpi's PyTorch folders; without torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.lerobot.config import features, numbered
from rlrun.policies.pi.config import PROMPT_LENGTH, PiConfig, PiSizes

ADAPTIVE = "model.time_mlp_in.weight"  # only pi0.5 has it


def is_openpi(found: Mapping[str, Any]) -> bool:
    """Return whether a config.json is openpi's."""
    return "type" not in found and {"action_horizon", "paligemma_variant"} <= found.keys()


def full_name(name: str) -> str:
    """Return the name in PiNetwork of a stored tensor. openpi's lack the first level."""
    return name if name.startswith("model.") else f"model.{name}"


def kind_of(names: Collection[str]) -> str:
    """Return "pi0" or "pi05", which only the names of the tensors tell."""
    return "pi05" if ADAPTIVE in names else "pi0"


def read_config(found: Mapping[str, Any], kind: str, sizes: PiSizes, spaces: PlannedSpaces) -> PiConfig:
    """Return the configuration. kind: "pi0" or "pi05"; spaces: of the run.

    Raises ValueError as PiConfig does.
    """
    side, chunk, width = sizes.vision.image_size, found["action_horizon"], found["action_dim"]
    return PiConfig.of(
        {
            "type": kind,
            "chunk_size": chunk,
            "n_action_steps": chunk,
            "max_action_dim": width,
            "max_state_dim": width,
            "tokenizer_max_length": PROMPT_LENGTH[kind],
            "image_resolution": [side, side],
            "paligemma_variant": found["paligemma_variant"],
            "action_expert_variant": found["action_expert_variant"],
            **features(numbered(spaces.num_images), side, spaces.num_proprio, spaces.num_actions),
        },
        sizes,
    )
