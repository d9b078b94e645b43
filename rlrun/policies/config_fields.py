"""The fields of a foreign config.json: read by rlrun, without a say in actions, or unknown and refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rlrun.policies.folders import has_only_adapters
from rlrun.policies.spec import CONFIG_FILE
from rlrun.policies.weight_files import refuse

MAX_FIELDS = 6  # in an error message
MAX_VALUE = 60  # characters of a value in it
# beginnings of names that say how a policy was trained, and transformers' private names
_OF_TRAINING = ("optimizer_", "scheduler_", "freeze_", "train_", "tune_", "time_sampling_", "_")
# of every config.json: the kind, which class or package wrote it, on what it computed, and where it is published
_OF_ALL = {
    "architectures",
    "attention_implementation",
    "attn_implementation",
    "auto_map",
    "device",
    "device_map",
    "dtype",
    "license",
    "model_type",
    "pretrained_path",
    "pretrained_revision",
    "private",
    "push_to_hub",
    "repo_id",
    "tags",
    "torch_dtype",
    "transformers_version",
    "type",
    "use_amp",
    "use_cache",
}
# of LeRobot's flow policies. rtc_…: when a robot asks for the next chunk. Names of joints count for relative actions
# alone, frames of a memory for a memory alone, which both are refused by their own fields.
LEROBOT = {
    "action_feature_names",
    "compile_mode",
    "compile_model",
    "gradient_checkpointing",
    "load_vlm_weights",
    "memory_frames",
    "memory_stride",
    "memory_temporal_attention_every",
    "relative_exclude_joints",
    "rtc_config",
    "rtc_ramp_rate",
    "rtc_training_max_delay",
}


def field_names(kind: type) -> set[str]:
    """Return the names of a dataclass that reads a config.json."""
    return {entry.name for entry in fields(kind)}


def require_known_fields(folder: Path, described: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise RunError that names the fields of a config.json which may change actions in a way that rlrun does not do.

    known: the fields that the kind reads, or that change no action, beside those of every kind. A field that is false,
    null, zero or empty asks for nothing.
    """
    known = _OF_ALL.union(known, ("use_peft",) if has_only_adapters(folder) else ())
    asked = {
        name: value
        for name, value in described.items()
        if value and name not in known and not name.startswith(_OF_TRAINING)
    }
    if not asked:
        return
    shown = [f"{name}={value!r:.{MAX_VALUE}}" for name, value in asked.items()]
    more = f" and {len(shown) - MAX_FIELDS} more" if len(shown) > MAX_FIELDS else ""
    refuse(
        f"The policy in {folder} may act otherwise in rlrun: its {CONFIG_FILE} sets "
        f"{', '.join(shown[:MAX_FIELDS])}{more}, which rlrun does not read.",
        f"Take a checkpoint without it. If it changes no action of this policy, delete it from {folder / CONFIG_FILE}.",
    )
