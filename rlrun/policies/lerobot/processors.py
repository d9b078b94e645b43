"""Writes the processors of a LeRobot folder: what happens before and after its policy, and the statistics for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from rlrun.policies.lerobot.config import ACTION, PREPROCESSOR, STATE, LeRobotConfig
from rlrun.policies.lerobot.statistics import EPS, Statistics
from rlrun.policies.lerobot.steps import NORMALIZER, POSTPROCESSOR, SCALING, UNNORMALIZER

Step = dict[str, Any]
RENAME: Step = {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}}
BATCH: Step = {"registry_name": "to_batch_processor", "config": {}}
DEVICE: Step = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}
NORMALIZE: Step = {"registry_name": NORMALIZER}  # its configuration and statistics are filled in


def tokenize(config: LeRobotConfig, name: str, padding: str) -> Step:
    """Return the step that makes tokens of the task. name: of the tokenizer on the hub, or its folder."""
    words = {
        "max_length": config.tokenizer_max_length,
        "task_key": "task",
        "padding_side": "right",
        "padding": padding,
        "truncation": True,
        "tokenizer_name": name,
    }
    return {"registry_name": "tokenizer_processor", "config": words}


def write_processors(folder: Path, config: LeRobotConfig, statistics: Statistics, before: Sequence[Step]) -> None:
    """Write both processors. config: with the mapping of the statistics; before: the steps before the policy."""
    features = {**config.input_features, **config.output_features}
    described = {"eps": EPS, "features": features, "norm_map": dict(config.normalization_mapping)}
    filled = [step | {"config": described} if step is NORMALIZE else dict(step) for step in before]
    own = {"registry_name": UNNORMALIZER, "config": described | {"features": dict(config.output_features)}}
    for name, steps in ((PREPROCESSOR, filled), (POSTPROCESSOR, [own, dict(DEVICE)])):
        _write(folder, name, steps, statistics)


def _write(folder: Path, name: str, steps: list[Step], statistics: Statistics) -> None:
    state = {
        f"{feature}.{part}": np.ascontiguousarray(values, np.float32)
        for feature, normalizer in ((STATE, statistics.state), (ACTION, statistics.action))
        if normalizer is not None
        for part, values in normalizer.stored().items()
    }
    for index, step in enumerate(steps):
        if step["registry_name"] in SCALING and state:
            step["state_file"] = f"{name}_step_{index}_{step['registry_name']}.safetensors"
            save_file(state, folder / step["state_file"])
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": steps}, indent=2) + "\n")
