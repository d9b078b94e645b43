"""LeRobot's processors before and after GR00T: statistics, cameras, embodiment and pictures, read and written.

LeRobot's class scales by the smallest and largest value, or by percentiles in their place, in steps of GR00T's own. The
names of the steps and of their settings are LeRobot's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.policies.flow.lerobot_config import (
    ACTION,
    IMAGES,
    MIN_STATE_STD,
    PREPROCESSOR,
    STATE,
    Normalizer,
    Statistics,
)
from rlrun.policies.flow.lerobot_processors import (
    BATCH,
    DEVICE,
    POSTPROCESSOR,
    RENAME,
    Step,
    Stored,
    checked,
    read_steps,
    require_equal_actions,
    stored_statistics,
    write_steps,
)
from rlrun.policies.gr00t.config import EMBODIMENTS, SIGN_OF_GRIPPER, Gr00tConfig, Pictures
from rlrun.policies.spec import CONFIG_FILE
from rlrun.policies.weight_files import refuse

PACK = "groot_n1_7_pack_inputs_v1"
ENCODE = "groot_n1_7_vlm_encode_v1"
UNPACK = "groot_action_unpack_unnormalize_v2"
DECODE = "groot_n1_7_action_decode_v1"
DONE = {"rename_observations_processor", "to_batch_processor", "device_processor", PACK, ENCODE, UNPACK, DECODE}


@dataclass(frozen=True, eq=False)
class MinMax(Normalizer):
    """From the smallest and largest value to -1 and 1; what lies beyond is cut, in both directions."""

    low: np.ndarray
    high: np.ndarray
    clips: bool = True  # before the network; after it actions are cut in any case
    mode = "MIN_MAX"
    parts = ("min", "max")

    def normalize(self, x: np.ndarray) -> np.ndarray:
        """A number without a range becomes 0."""
        span = self.high - self.low
        scaled = np.where(span == 0, 0.0, 2.0 * (x - self.low) / np.where(span == 0, 1.0, span) - 1.0)
        return (scaled.clip(-1.0, 1.0) if self.clips else scaled).astype(np.float32)

    def denormalize(self, x: np.ndarray) -> np.ndarray:
        return ((x.clip(-1.0, 1.0) + 1.0) * 0.5 * (self.high - self.low) + self.low).astype(np.float32)

    def widened(self, std: float) -> MinMax:
        """The ends lie at least two standard deviations from the middle."""
        middle = (self.high + self.low) / 2
        half = np.maximum((self.high - self.low) / 2, 2 * std)
        return MinMax((middle - half).astype(np.float32), (middle + half).astype(np.float32), self.clips)

    def stored(self) -> dict[str, np.ndarray]:
        return dict(zip(self.parts, (self.low, self.high), strict=True))


def of_demonstrations(norm_stats: Mapping[str, Mapping[str, Any]]) -> Statistics:
    """Return the statistics of a task's demonstrations (`DemonstratedTask.norm_stats`)."""

    def normalizer(name: str) -> MinMax:
        low, high = (np.asarray(norm_stats[name][part], np.float32) for part in MinMax.parts)
        return MinMax(low, high)

    return Statistics(normalizer("proprio").widened(MIN_STATE_STD), normalizer("action"))


@dataclass(frozen=True, eq=False)
class ProcessorDescription:
    """Facts of a folder that its processors hold and its config.json lacks."""

    statistics: Statistics
    config_fields: dict[str, Any]  # fields of Gr00tConfig that config.json has no place for
    cameras: Sequence[str] | None  # their short names in the order of the prompt; None: in that of the alphabet
    valid_horizon: int | None = None  # control steps of a chunk that were trained; None: the folder does not say


def read_processors(folder: Path, tag: str, num_proprio: int, num_actions: int) -> ProcessorDescription:
    """Read the processors of a folder. tag: the embodiment's; num_proprio, num_actions: of config.json, 0: unknown.

    Raises RunError for a step or a setting that rlrun does not have, and for statistics that do not fit.
    """
    before, after = (read_steps(folder, name, {}, DONE) for name in (PREPROCESSOR, POSTPROCESSOR))
    pack, encode = (_settings(before or [], name) for name in (PACK, ENCODE))
    decode = _settings(after or [], DECODE)
    _require_known(folder, pack, decode)
    stored = stored_statistics(folder, PREPROCESSOR, before or [], [PACK])
    if decode:
        require_equal_actions(stored, _of_groups(folder, decode))
    else:
        require_equal_actions(stored, stored_statistics(folder, POSTPROCESSOR, after or [], [UNPACK]))
    clips = pack.get("clip_outliers", True)
    scales = pack.get("normalize_min_max", True)
    state, action = (
        _normalizer(stored, name, size, clips) if scales else None
        for name, size in ((STATE, num_proprio), (ACTION, num_actions))
    )
    known: dict[str, Any] = {entry.name: encode[entry.name] for entry in fields(Pictures) if entry.name in encode}
    for name in ("image_target_size", "image_crop_size"):
        if isinstance(known.get(name), list):
            known[name] = tuple(known[name])
    config_fields = {
        "pictures": Pictures(**known),
        "embodiment": _embodiment(folder, tag, pack),
        "formalize_language": pack.get("formalize_language", True),
    }
    cameras = pack.get("video_modality_keys")
    return ProcessorDescription(Statistics(state, action), config_fields, cameras, pack.get("valid_action_horizon"))


def _embodiment(folder: Path, tag: str, pack: Mapping[str, Any]) -> int:
    """Return the row of the projections. Raises RunError for a tag that the folder does not know, or knows as two."""
    known = pack.get("embodiment_mapping") or EMBODIMENTS
    if tag not in known:
        refuse(
            f"The policy in {folder} is of the embodiment {tag!r}, for which it has no projections.",
            f"Write the one that it was trained for into {CONFIG_FILE} as embodiment_tag: {', '.join(sorted(known))}.",
        )
    packed = pack.get("embodiment_tag", tag)
    if packed != tag:
        refuse(
            f"The policy in {folder} is of two embodiments: {CONFIG_FILE} says {tag!r}, and {PREPROCESSOR}.json "
            f"{packed!r}.",
            "Write the one that it was trained for into both, as embodiment_tag.",
        )
    return int(known[tag])


def _settings(steps: Sequence[Step], name: str) -> dict[str, Any]:
    configs = [step.get("config") for step in steps if step.get("registry_name") == name]
    return configs[0] if configs and isinstance(configs[0], dict) else {}


def _require_known(folder: Path, pack: Mapping[str, Any], decode: Mapping[str, Any]) -> None:
    groups = (pack.get("modality_config") or {}).get("action", {}).get("action_configs") or []
    faults = {
        "relative actions": decode.get("use_relative_action", False)
        or any("relative" in str(group.get("rep")).lower() for group in groups),
        "several frames of a video (video_horizon)": pack.get("video_horizon") not in (None, 0, 1),
        "several states (state_horizon)": pack.get("state_horizon", 1) != 1,
    }
    for what, is_there in faults.items():
        if is_there:
            refuse(f"The policy in {folder} has {what}, which rlrun does not do.", "Take a checkpoint without them.")


def _of_groups(folder: Path, decode: Mapping[str, Any]) -> Stored:
    """Return the statistics of actions that are stored by group, such as x, y, z and gripper, one after another."""
    groups = decode.get("raw_stats", {}).get("action", {})
    names = decode.get("modality_config", {}).get("action", {}).get("modality_keys", [])
    source = ("q01", "q99") if decode.get("use_percentiles", False) else MinMax.parts
    statistics = {}
    for part, stored in zip(MinMax.parts, source, strict=True):
        values = [np.asarray(groups[name][stored], np.float32) for name in names if stored in groups.get(name, {})]
        if values:
            statistics[f"{ACTION}.{part}"] = np.concatenate(values)
    return Stored(folder / f"{POSTPROCESSOR}.json", statistics)


def _normalizer(stored: Stored, feature: str, size: int, clips: bool) -> MinMax | None:
    names = [f"{feature}.{part}" for part in MinMax.parts]
    if not any(name in stored.values for name in names):
        return None
    low, high = (checked(stored, name, size) for name in names)
    return MinMax(low, high, clips)


def write_gr00t_processors(folder: Path, config: Gr00tConfig, statistics: Statistics, backbone_name: str) -> None:
    """Write both processors. backbone_name: of the VLM on the hub, or the folder of its tokenizer."""
    scaled = next(
        (normalizer for normalizer in (statistics.action, statistics.state) if isinstance(normalizer, MinMax)), None
    )
    pack = {
        "state_horizon": 1,
        "action_horizon": config.horizon,
        "valid_action_horizon": config.chunk_size,
        "video_horizon": None,
        "max_state_dim": config.max_state_dim,
        "max_action_dim": config.max_action_dim,
        "language_key": "task",
        "formalize_language": config.formalize_language,
        "embodiment_tag": config.embodiment_tag,
        "embodiment_mapping": EMBODIMENTS | {config.embodiment_tag: config.embodiment},
        "normalize_min_max": True,
        "state_dropout_prob": 0.0,
        "clip_outliers": True if scaled is None else scaled.clips,
        "use_percentiles": False,
        "video_modality_keys": [name.removeprefix(f"{IMAGES}.") for name in config.cameras],
        "raw_stats": None,
        "modality_config": None,
    }
    encode = {"model_name": backbone_name, **asdict(config.pictures), "device": "cpu"}
    unpack = {
        "env_action_dim": config.num_actions,
        "normalize_min_max": True,
        "clip_normalized_action": True,
        "libero_gripper_action": config.action_decode_transform == SIGN_OF_GRIPPER,
        "libero_gripper_binarize": True,
    }
    before = [RENAME, BATCH, _step(PACK, pack), _step(ENCODE, encode), DEVICE]
    write_steps(folder, PREPROCESSOR, before, statistics, [PACK])
    write_steps(folder, POSTPROCESSOR, [_step(UNPACK, unpack), DEVICE], statistics, [UNPACK])


def _step(name: str, config: Mapping[str, Any]) -> Step:
    return {"registry_name": name, "config": dict(config)}
