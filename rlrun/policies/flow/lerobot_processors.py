"""Writes the processors of a LeRobot folder: what happens before and after its policy, and the statistics for it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from rlrun.policies.flow.lerobot_config import (
    ACTION,
    EPS,
    MODES,
    PREPROCESSOR,
    STATE,
    LeRobotConfig,
    Normalizer,
    Statistics,
)
from rlrun.policies.tokenizer import TOKENIZER_FILE
from rlrun.policies.weight_files import WEIGHTS_FILE, WeightFiles, inside, read_json, refuse
from rlrun.system.errors import ExitStatus, RunError

NORMALIZER = "normalizer_processor"
POSTPROCESSOR = "policy_postprocessor"
UNNORMALIZER = "unnormalizer_processor"
WORDS = "tokenizer_processor"
SCALING = (NORMALIZER, UNNORMALIZER)
DONE = {  # rlrun does what these do, for every kind that it opens
    *SCALING,
    "rename_observations_processor",
    "to_batch_processor",
    "device_processor",
    WORDS,
    "smolvla_new_line_processor",
    "pi0_new_line_processor",
    "pi05_prepare_state_tokenizer_processor_step",
}
IDLE_UNLESS_ENABLED = {"relative_actions_processor", "absolute_actions_processor"}  # of LeRobot 0.5
Step = dict[str, Any]
RENAME: Step = {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}}
BATCH: Step = {"registry_name": "to_batch_processor", "config": {}}
DEVICE: Step = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}
NORMALIZE: Step = {"registry_name": NORMALIZER}  # its configuration and statistics are filled in
BUFFERS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")  # of older versions
_BUFFER = re.compile(r"^[a-z_]+\.(?:[^.]*_)?buffer_(?P<feature>\w+)\.(?P<kind>mean|std)$")
logger = logging.getLogger(__name__)


def read_steps(
    folder: Path, name: str, mapping: Mapping[str, str], done: Set[str] = DONE
) -> list[dict[str, Any]] | None:
    """Return the steps of a processor; None: the folder is older, and has no such file.

    name: PREPROCESSOR or POSTPROCESSOR; mapping: normalization_mapping of config.json; done: the steps that rlrun does.
    Raises RunError for another one, and for one that scales otherwise than config.json says.
    """
    file = folder / f"{name}.json"
    if not file.is_file():
        return None
    steps = read_json(file).get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        _refuse_steps(file, "Its `steps` are no list of steps.", "Take the file that LeRobot wrote with the weights.")
    for step in steps:
        _require_known(file, step, done)
        if step.get("registry_name") in SCALING:
            _require_agreement(file, step, mapping)
    return steps


def _require_known(file: Path, step: Mapping[str, Any], done: Set[str]) -> None:
    name = step.get("registry_name", step.get("class"))
    is_idle = name in IDLE_UNLESS_ENABLED and not _settings(step).get("enabled", False)
    if not (isinstance(name, str) and (name in done or is_idle)):
        _refuse_steps(
            file,
            f"It has the step {name!r}, which rlrun does not do: the policy would see or do something else.",
            "Take a checkpoint without it. If it changes nothing in your robot's case, delete the step in that file.",
        )


def _require_agreement(file: Path, step: Mapping[str, Any], mapping: Mapping[str, str]) -> None:
    norm_map = _settings(step).get("norm_map")
    for kind, mode in norm_map.items() if isinstance(norm_map, dict) else ():
        if kind in ("STATE", "ACTION") and mapping.get(kind, mode) != mode:
            _refuse_steps(
                file,
                f"Its step {step['registry_name']} scales {kind} by {mode}; config.json says {mapping[kind]}.",
                "Take both files from the same checkpoint.",
            )


def _settings(step: Mapping[str, Any]) -> dict[str, Any]:
    config = step.get("config")
    return config if isinstance(config, dict) else {}


def _refuse_steps(file: Path, cause: str, remedy: str) -> NoReturn:
    raise RunError(
        f"{file} does not describe inputs that rlrun can prepare.",
        key="policy.path",
        value=str(file.parent),
        cause=cause,
        remedy=remedy,
        exit_status=ExitStatus.bad_input,
    )


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
    return {"registry_name": WORDS, "config": words}


def write_processors(folder: Path, config: LeRobotConfig, statistics: Statistics, before: Sequence[Step]) -> None:
    """Write both processors. config: with the mapping of the statistics; before: the steps before the policy."""
    features = {**config.input_features, **config.output_features}
    described = {"eps": EPS, "features": features, "norm_map": dict(config.normalization_mapping)}
    filled = [step | {"config": described} if step is NORMALIZE else dict(step) for step in before]
    unnormalizer = {"registry_name": UNNORMALIZER, "config": described | {"features": dict(config.output_features)}}
    for name, steps in ((PREPROCESSOR, filled), (POSTPROCESSOR, [unnormalizer, dict(DEVICE)])):
        write_steps(folder, name, steps, statistics)


def write_steps(
    folder: Path, name: str, steps: Sequence[Step], statistics: Statistics, scaling: Sequence[str] = SCALING
) -> None:
    """Write a processor. scaling: names of the steps that have the statistics."""
    steps = [dict(step) for step in steps]
    state = {
        f"{feature}.{part}": np.ascontiguousarray(values, np.float32)
        for feature, normalizer in ((STATE, statistics.state), (ACTION, statistics.action))
        if normalizer is not None
        for part, values in normalizer.stored().items()
    }
    for index, step in enumerate(steps):
        if step["registry_name"] in scaling and state:
            step["state_file"] = f"{name}_step_{index}_{step['registry_name']}.safetensors"
            save_file(state, folder / step["state_file"])
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": steps}, indent=2) + "\n")


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
    stored = _of_buffers(folder, weights) if before is None else before
    if after is not None and before is not None:
        require_equal_actions(before, after)
    return Statistics(
        _normalizer(folder, config, stored, STATE, "STATE", config.num_proprio),
        _normalizer(folder, config, stored, ACTION, "ACTION", config.num_actions),
    )


def _of_processor(folder: Path, name: str, config: LeRobotConfig) -> Stored | None:
    """Return the statistics of a processor's scaling step; None: there is no such processor."""
    steps = read_steps(folder, name, config.normalization_mapping)
    _require_settings(folder / f"{name}.json", steps or (), config)
    return None if steps is None else stored_statistics(folder, name, steps, SCALING)


def _require_settings(file: Path, steps: Sequence[Step], config: LeRobotConfig) -> None:
    """Raise RunError for a step that cuts, pads or scales otherwise than rlrun does by config.json."""
    wanted = {"max_length": config.tokenizer_max_length, "padding_side": "right", "eps": EPS}
    for step in steps:
        settings = _settings(step)
        unlike = [name for name, value in wanted.items() if settings.get(name, value) != value]
        if unlike and step.get("registry_name") in (WORDS, *SCALING):
            _refuse_steps(
                file,
                f"Its step {step['registry_name']} has {unlike[0]}={settings[unlike[0]]}, and rlrun does what "
                f"{wanted[unlike[0]]} asks for.",
                "Take config.json (tokenizer_max_length) and this file from the same checkpoint.",
            )


def stored_statistics(folder: Path, name: str, steps: Sequence[Step], scaling: Sequence[str]) -> Stored:
    """Return the statistics that a processor has: those of the first step of `scaling` that has any."""
    for step in steps:
        if step.get("registry_name") in scaling and "state_file" in step:
            file = folder / inside(folder, step["state_file"])
            try:
                return Stored(file, load_file(file))
            except (OSError, SafetensorError) as error:
                refuse(f"{file} cannot be read: {error}.", "It is missing or damaged: copy it again.")
    return Stored(folder / f"{name}.json", {})


def _of_buffers(folder: Path, weights: WeightFiles) -> Stored:
    """Return the statistics that older versions keep among the weights, under one name per data set: the first."""
    statistics: dict[str, np.ndarray] = {}
    for name in weights.in_order():
        matched = _BUFFER.match(name) if name.startswith(BUFFERS) else None
        if matched:
            feature = matched["feature"].replace("_", ".", 1) if matched["feature"] != ACTION else ACTION
            statistics.setdefault(f"{feature}.{matched['kind']}", weights.read(name).float().numpy())
    return Stored(folder / WEIGHTS_FILE, statistics)


def require_equal_actions(before: Stored, after: Stored) -> None:
    """Raise RunError if actions are scaled otherwise after the policy than its training scaled them before it."""
    for name in sorted(after.values.keys() & before.values.keys()):
        value = before.values[name]
        other = after.values[name]
        if name.startswith(f"{ACTION}.") and not np.array_equal(value, other, equal_nan=True):
            _refuse(
                after.file,
                f"Its {name} is not that of {before.file.name}.",
                "Take both files from the same checkpoint.",
            )


def _normalizer(
    folder: Path, config: LeRobotConfig, stored: Stored, feature: str, kind: str, size: int
) -> Normalizer | None:
    """Return the normalizer of a feature. size: its numbers; 0: config.json does not say."""
    mode = config.normalization_mapping.get(kind, "IDENTITY")
    if mode == "IDENTITY":
        return None
    names = [f"{feature}.{part}" for part in MODES[mode].parts]
    present = [name for name in names if name in stored.values]
    if not present and any(name.startswith(f"{feature}.") for name in stored.values):
        has = sorted(name for name in stored.values if name.startswith(f"{feature}."))
        _refuse(
            stored.file,
            f"config.json normalizes {kind} by {mode}, which takes {' and '.join(names)}; it has {', '.join(has)}.",
            "Take config.json and the processors' files from the same checkpoint.",
        )
    if not present or all(np.isinf(stored.values[name]).all() for name in present):
        logger.warning("%s has no statistics of %s: its numbers are used as they are.", folder, feature)
        return None
    low, high = (checked(stored, name, size) for name in names)
    return MODES[mode](low, high)


def checked(stored: Stored, name: str, size: int) -> np.ndarray:
    """Return float32 [D]. Raises RunError if it is missing, of another size (0: any), or not finite."""
    if name not in stored.values:
        _refuse(stored.file, f"{name} is missing.", "Take the file of the same checkpoint as config.json.")
    values = stored.values[name]
    if values.dtype.kind != "f" or values.ndim != 1 or (size and len(values) != size):
        _refuse(
            stored.file,
            f"{name} is {values.dtype} {list(values.shape)}; config.json describes {size or 'some'} numbers.",
            "Take config.json and the processors' files from the same checkpoint: one is of another robot.",
        )
    if len(wrong := np.flatnonzero(~np.isfinite(values))):
        _refuse(
            stored.file,
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


def tokenizer_file(folder: Path, places: Sequence[Path], given: Path | None, name: str) -> Path:
    """Return the first tokenizer.json in `folder`, `places`, or where the run names it; nothing is downloaded.

    given: the file or its folder. name: of the model on the hub that has it. Raises RunError that says where to put it.
    """
    folders = [folder, *places] + ([given] if given is not None else [])
    candidates = (place / TOKENIZER_FILE if place.is_dir() else place for place in folders)
    file = next((file for file in candidates if file.is_file()), None)
    if file is None:
        refuse(
            f"There is no {TOKENIZER_FILE} in {folder}, as LeRobot leaves it on the hub.",
            f"Download {TOKENIZER_FILE} of {name} into {places[0]}.",
        )
    return file


def padding_token(tokenizer: Tokenizer) -> str:
    """Return the token beside shorter prompts: it is masked, but LeRobot asks for one."""
    return str(tokenizer.id_to_token((tokenizer.padding or {}).get("pad_id", 0)))


def write_tokenizer(tokenizer: Tokenizer, folder: Path, special: Mapping[str, str] | None = None) -> None:
    """Write tokenizer.json, and what transformers' AutoTokenizer needs beside it.

    special: further tokens by the names with which a processor of transformers asks for them.
    """
    tokenizer.save(str(folder / TOKENIZER_FILE))
    described: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": padding_token(tokenizer),
    }
    if special:
        described["extra_special_tokens"] = dict(special)
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=4) + "\n", encoding="utf-8")
