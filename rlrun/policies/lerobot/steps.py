"""Reads the steps of a LeRobot folder's processors, and refuses those that rlrun does not do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rlrun.policies.weight_files import read_json
from rlrun.system.errors import ExitStatus, RunError

NORMALIZER = "normalizer_processor"
POSTPROCESSOR, UNNORMALIZER = "policy_postprocessor", "unnormalizer_processor"
SCALING = (NORMALIZER, UNNORMALIZER)
DONE = {  # rlrun does what these do, for every kind that it opens
    *SCALING,
    "rename_observations_processor",
    "to_batch_processor",
    "device_processor",
    "tokenizer_processor",
    "smolvla_new_line_processor",
    "pi0_new_line_processor",
    "pi05_prepare_state_tokenizer_processor_step",
}
IDLE_UNLESS_ENABLED = {"relative_actions_processor", "absolute_actions_processor"}  # of LeRobot 0.5


def read_steps(folder: Path, name: str, mapping: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """Return the steps of a processor; None: the folder is older, and has no such file.

    name: PREPROCESSOR or POSTPROCESSOR; mapping: normalization_mapping of config.json. Raises RunError for a step that
    rlrun does not do, and for one that scales otherwise than config.json says.
    """
    file = folder / f"{name}.json"
    if not file.is_file():
        return None
    steps = read_json(file).get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        _refuse(file, "Its `steps` are no list of steps.", "Take the file that LeRobot wrote with the weights.")
    for step in steps:
        _require_known(file, step)
        if step.get("registry_name") in SCALING:
            _require_agreement(file, step, mapping)
    return steps


def _require_known(file: Path, step: Mapping[str, Any]) -> None:
    name = step.get("registry_name", step.get("class"))
    is_idle = name in IDLE_UNLESS_ENABLED and not _settings(step).get("enabled", False)
    if not (isinstance(name, str) and (name in DONE or is_idle)):
        _refuse(
            file,
            f"It has the step {name!r}, which rlrun does not do: the policy would see or do something else.",
            "Take a checkpoint without it. If it changes nothing in your robot's case, delete the step in that file.",
        )


def _require_agreement(file: Path, step: Mapping[str, Any], mapping: Mapping[str, str]) -> None:
    found = _settings(step).get("norm_map")
    for kind, mode in found.items() if isinstance(found, dict) else ():
        if kind in ("STATE", "ACTION") and mapping.get(kind, mode) != mode:
            _refuse(
                file,
                f"Its step {step['registry_name']} scales {kind} by {mode}; config.json says {mapping[kind]}.",
                "Take both files from the same checkpoint.",
            )


def _settings(step: Mapping[str, Any]) -> dict[str, Any]:
    found = step.get("config")
    return found if isinstance(found, dict) else {}


def _refuse(file: Path, cause: str, remedy: str) -> NoReturn:
    raise RunError(
        f"{file} does not describe inputs that rlrun can prepare.",
        key="policy.path",
        value=str(file.parent),
        cause=cause,
        remedy=remedy,
        exit_status=ExitStatus.bad_input,
    )
