"""Statistics of state and actions: normalization, and how LeRobot's folders hold it.

LeRobot 0.4 keeps them in the files of its processors, older versions as buffers in model.safetensors.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from rlrun.policies.smolvla.config import ACTION, STATE, SmolVLAConfig
from rlrun.policies.weight_files import WeightFiles, read_json, refuse

EPS = 1e-8  # LeRobot's: added to the standard deviation
PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor", "policy_postprocessor"
NORMALIZER, UNNORMALIZER = "normalizer_processor", "unnormalizer_processor"
BUFFERS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")  # of older versions
_BUFFER = re.compile(r"^[a-z_]+\.(?:[^.]*_)?buffer_(?P<feature>\w+)\.(?P<kind>mean|std)$")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Normalizer:
    """Standardization of the last axis. mean, std: float32 [dimensions], in simulator units."""

    mean: np.ndarray
    std: np.ndarray

    def normalize(self, x: np.ndarray) -> np.ndarray:
        """Convert simulator units -> float32 with mean 0 and standard deviation 1."""
        return ((x - self.mean) / (self.std + EPS)).astype(np.float32)

    def denormalize(self, x: np.ndarray) -> np.ndarray:
        """Convert back to float32 in simulator units; as in LeRobot, without the EPS of `normalize`."""
        return (x * self.std + self.mean).astype(np.float32)


@dataclass(frozen=True)
class Statistics:
    """The normalizers of a policy; None: the numbers are used as they are."""

    state: Normalizer | None = None
    action: Normalizer | None = None

    @property
    def mapping(self) -> dict[str, str]:
        """LeRobot's normalization_mapping."""
        modes = {"VISUAL": None, "STATE": self.state, "ACTION": self.action}
        return {kind: "IDENTITY" if found is None else "MEAN_STD" for kind, found in modes.items()}


def read_statistics(folder: Path, config: SmolVLAConfig, weights: WeightFiles) -> Statistics:
    """Read a folder's statistics, in the layout of LeRobot 0.4 or an older one.

    Statistics that are missing or not finite (LeRobot's mark of a base model, which has seen no one's data) are None.
    Raises RunError for another normalization than MEAN_STD and IDENTITY, and for a damaged file.
    """
    pictures = config.normalization_mapping.get("VISUAL", "IDENTITY")
    if config.cameras and pictures != "IDENTITY":
        _refuse_mode(folder, "VISUAL", pictures)
    stored = _of_processors(folder)
    found = _of_buffers(weights) if stored is None else stored
    return Statistics(
        _normalizer(folder, config, found, STATE, "STATE"), _normalizer(folder, config, found, ACTION, "ACTION")
    )


def write_statistics(folder: Path, config: SmolVLAConfig, statistics: Statistics) -> None:
    """Write LeRobot's processors with their states. `config` has the mapping of the statistics."""
    features = {**config.input_features, **config.output_features}
    described: dict[str, Any] = {"eps": EPS, "features": features, "norm_map": dict(config.normalization_mapping)}
    to_cpu = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}
    words = {
        "max_length": config.tokenizer_max_length,
        "task_key": "task",
        "padding_side": "right",
        "padding": config.pad_language_to,
        "truncation": True,
        "tokenizer_name": config.vlm_model_name,
    }
    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        {"registry_name": "smolvla_new_line_processor", "config": {}},
        {"registry_name": "tokenizer_processor", "config": words},
        to_cpu,
        {"registry_name": NORMALIZER, "config": described},
    ]
    own = {"registry_name": UNNORMALIZER, "config": described | {"features": dict(config.output_features)}}
    for name, steps in ((PREPROCESSOR, before), (POSTPROCESSOR, [own, to_cpu])):
        _write_processor(folder, name, steps, statistics)


def _write_processor(folder: Path, name: str, steps: list[dict[str, Any]], statistics: Statistics) -> None:
    state = {
        f"{feature}.{kind}": np.ascontiguousarray(values, np.float32)
        for feature, normalizer in ((STATE, statistics.state), (ACTION, statistics.action))
        if normalizer is not None
        for kind, values in (("mean", normalizer.mean), ("std", normalizer.std))
    }
    for index, step in enumerate(steps):
        if step["registry_name"] in (NORMALIZER, UNNORMALIZER) and state:
            step["state_file"] = f"{name}_step_{index}_{step['registry_name']}.safetensors"
            save_file(state, folder / step["state_file"])
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": steps}, indent=2) + "\n")


def _of_processors(folder: Path) -> dict[str, np.ndarray] | None:
    """Return the states of the preprocessor's normalizer, "action.mean" and so on; None without a preprocessor."""
    file = folder / f"{PREPROCESSOR}.json"
    if not file.is_file():
        return None
    for step in read_json(file).get("steps", []):
        if step.get("registry_name") == NORMALIZER and "state_file" in step:
            state = folder / step["state_file"]
            try:
                return load_file(state)
            except (OSError, SafetensorError) as error:
                refuse(f"{state} cannot be read: {error}.", "Copy the whole folder again.")
    return {}


def _of_buffers(weights: WeightFiles) -> dict[str, np.ndarray]:
    """Return the statistics that older versions keep among the weights, under one name per data set: the first."""
    found: dict[str, np.ndarray] = {}
    for name in weights.in_order():
        matched = _BUFFER.match(name) if name.startswith(BUFFERS) else None
        if matched:
            feature = matched["feature"].replace("_", ".", 1) if matched["feature"] != ACTION else ACTION
            found.setdefault(f"{feature}.{matched['kind']}", weights.read(name).float().numpy())
    return found


def _normalizer(
    folder: Path, config: SmolVLAConfig, found: Mapping[str, np.ndarray], feature: str, kind: str
) -> Normalizer | None:
    mode = config.normalization_mapping.get(kind, "IDENTITY")
    if mode == "IDENTITY":
        return None
    if mode != "MEAN_STD":
        _refuse_mode(folder, kind, mode)
    mean, std = (found.get(f"{feature}.{part}") for part in ("mean", "std"))
    if mean is None or std is None or not (np.isfinite(mean).all() and np.isfinite(std).all()):
        logger.warning("%s has no statistics of %s: its numbers are used as they are.", folder, feature)
        return None
    return Normalizer(mean.astype(np.float32), std.astype(np.float32))


def _refuse_mode(folder: Path, kind: str, mode: str) -> NoReturn:
    refuse(
        f"The policy in {folder} normalizes {kind} by {mode}; rlrun has MEAN_STD for states and actions, and IDENTITY.",
        "Take a checkpoint that LeRobot trained with SmolVLA's own normalization_mapping.",
    )
