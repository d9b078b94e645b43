"""Reads the statistics of a LeRobot folder, and refuses those that cannot be its policy's.

LeRobot 0.4 keeps them in the files of its processors, older versions as buffers in model.safetensors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from rlrun.policies.lerobot.config import ACTION, PREPROCESSOR, STATE, LeRobotConfig
from rlrun.policies.lerobot.statistics import MODES, Normalizer, Statistics
from rlrun.policies.lerobot.steps import POSTPROCESSOR, SCALING, read_steps
from rlrun.policies.weight_files import WEIGHTS_FILE, WeightFiles, inside, refuse
from rlrun.system.errors import ExitStatus, RunError

BUFFERS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")  # of older versions
_BUFFER = re.compile(r"^[a-z_]+\.(?:[^.]*_)?buffer_(?P<feature>\w+)\.(?P<kind>mean|std)$")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Stored:
    """The statistics of one file, by name: "action.mean" and so on."""

    file: Path
    values: Mapping[str, np.ndarray]


def read_statistics(folder: Path, config: LeRobotConfig, weights: WeightFiles) -> Statistics:
    """Read a folder's statistics, in the layout of LeRobot 0.4 or an older one.

    Statistics that are missing or infinite (LeRobot's mark of a base model, which has seen no one's data) are None.
    Raises RunError for a normalization that rlrun lacks, for a damaged file, and for statistics of another size, with
    NaN, or of another kind than config.json says.
    """
    pictures = config.normalization_mapping.get("VISUAL", "IDENTITY")
    if config.cameras and pictures != "IDENTITY":
        _refuse_mode(folder, "VISUAL", pictures)
    for kind in ("STATE", "ACTION"):
        mode = config.normalization_mapping.get(kind, "IDENTITY")
        if mode != "IDENTITY" and mode not in MODES:
            _refuse_mode(folder, kind, mode)
    before = _of_processor(folder, PREPROCESSOR, config)
    after = _of_processor(folder, POSTPROCESSOR, config)
    found = _of_buffers(folder, weights) if before is None else before
    if after is not None and before is not None:
        _require_equal_actions(before, after)
    return Statistics(
        _normalizer(folder, config, found, STATE, "STATE", config.num_proprio),
        _normalizer(folder, config, found, ACTION, "ACTION", config.num_actions),
    )


def _of_processor(folder: Path, name: str, config: LeRobotConfig) -> Stored | None:
    """Return the statistics of a processor's scaling step; None: there is no such processor."""
    steps = read_steps(folder, name, config.normalization_mapping)
    if steps is None:
        return None
    for step in steps:
        if step.get("registry_name") in SCALING and "state_file" in step:
            file = folder / inside(folder, step["state_file"])
            try:
                return Stored(file, load_file(file))
            except (OSError, SafetensorError) as error:
                refuse(f"{file} cannot be read: {error}.", "It is missing or damaged: copy it again.")
    return Stored(folder / f"{name}.json", {})


def _of_buffers(folder: Path, weights: WeightFiles) -> Stored:
    """Return the statistics that older versions keep among the weights, under one name per data set: the first."""
    found: dict[str, np.ndarray] = {}
    for name in weights.in_order():
        matched = _BUFFER.match(name) if name.startswith(BUFFERS) else None
        if matched:
            feature = matched["feature"].replace("_", ".", 1) if matched["feature"] != ACTION else ACTION
            found.setdefault(f"{feature}.{matched['kind']}", weights.read(name).float().numpy())
    return Stored(folder / WEIGHTS_FILE, found)


def _require_equal_actions(before: Stored, after: Stored) -> None:
    """Raise RunError if actions are scaled otherwise after the policy than its training scaled them before it."""
    for name in sorted(after.values.keys() & before.values.keys()):
        one, other = before.values[name], after.values[name]
        if name.startswith(f"{ACTION}.") and not np.array_equal(one, other, equal_nan=True):
            _refuse(
                after.file,
                f"Its {name} is not that of {before.file.name}.",
                "Take both files from the same checkpoint.",
            )


def _normalizer(
    folder: Path, config: LeRobotConfig, found: Stored, feature: str, kind: str, size: int
) -> Normalizer | None:
    """Return the normalizer of a feature. size: its numbers; 0: config.json does not say."""
    mode = config.normalization_mapping.get(kind, "IDENTITY")
    if mode == "IDENTITY":
        return None
    names = [f"{feature}.{part}" for part in MODES[mode].parts]
    present = [name for name in names if name in found.values]
    if not present and any(name.startswith(f"{feature}.") for name in found.values):
        has = sorted(name for name in found.values if name.startswith(f"{feature}."))
        _refuse(
            found.file,
            f"config.json normalizes {kind} by {mode}, which takes {' and '.join(names)}; it has {', '.join(has)}.",
            "Take config.json and the processors' files from the same checkpoint.",
        )
    if not present or all(np.isinf(found.values[name]).all() for name in present):
        logger.warning("%s has no statistics of %s: its numbers are used as they are.", folder, feature)
        return None
    one, other = (_checked(found, name, size) for name in names)
    return MODES[mode](one, other)


def _checked(found: Stored, name: str, size: int) -> np.ndarray:
    """Return float32 [D]. Raises RunError if it is missing, of another size, or not finite."""
    if name not in found.values:
        _refuse(found.file, f"{name} is missing.", "Take the file of the same checkpoint as config.json.")
    values = found.values[name]
    if values.dtype.kind != "f" or values.ndim != 1 or (size and len(values) != size):
        _refuse(
            found.file,
            f"{name} is {values.dtype} {list(values.shape)}; config.json describes {size or 'some'} numbers.",
            "Take config.json and the processors' files from the same checkpoint: one is of another robot.",
        )
    if len(wrong := np.flatnonzero(~np.isfinite(values))):
        _refuse(
            found.file,
            f"{name}[{wrong[0]}] is {values[wrong[0]]}, and {len(wrong) - 1} more are not finite.",
            "Take another checkpoint, or compute the statistics again without the episodes that hold NaN.",
        )
    return values.astype(np.float32)


def _refuse(file: Path, cause: str, remedy: str) -> NoReturn:
    raise RunError(
        f"The statistics in {file} cannot be used.",
        key="policy.path",
        value=str(file.parent),
        cause=cause,
        remedy=remedy,
        exit_status=ExitStatus.bad_input,
    )


def _refuse_mode(folder: Path, kind: str, mode: str) -> NoReturn:
    refuse(
        f"The policy in {folder} normalizes {kind} by {mode}; rlrun has {' and '.join(MODES)} for states and actions, "
        "and IDENTITY.",
        "Take a checkpoint that LeRobot trained with the policy's own normalization_mapping.",
    )
