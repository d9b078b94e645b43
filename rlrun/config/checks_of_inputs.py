"""Checks of folders and names: what a run reads, and where it writes."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.config.faults import Faults
from rlrun.config.schema import CHANGED_NUMBERS, PICTURE_CHANGES, RunConfig
from rlrun.system.errors import ExitStatus, RunError

LONGEST_NAME = 255  # bytes
_POLICY = "a folder with config.json and weights: runs/NAME/TIME/policy of a run, or a downloaded checkpoint"
INPUTS = {  # key of a path -> what it must name
    "policy.path": f"Name a policy, {_POLICY}; null starts with a new policy.",
    "demos.path": "Name a LeRobot dataset (docs/howto/demonstrations.md); null records the expert's episodes.",
    "replay.path": "Name the folder of a run with record.num_steps above 0.",
    "checkpoint.resume": "Name the checkpoints folder of a run, or one checkpoint in it.",
    "evaluation.checkpoint": f"Name a run folder, a checkpoint, or {_POLICY}.",
}


def paths_exist(config: RunConfig) -> Faults:
    """All files that training reads exist."""
    yield from _missing(
        config,
        {
            "policy.path": config.policy.path,
            "demos.path": config.demos.path,
            "replay.path": config.replay.path,
            "checkpoint.resume": None if config.checkpoint.resume == "auto" else config.checkpoint.resume,
        },
    )


def evaluated_policy_exists(config: RunConfig) -> Faults:
    """The policy to evaluate or to serve exists."""
    yield from _missing(config, {"evaluation.checkpoint": config.evaluation.checkpoint})


def _missing(config: RunConfig, inputs: dict[str, str | None]) -> Faults:
    """Yield a fault for each missing path. With an inventory file none, since other machines read them."""
    if config.placement.inventory is not None:
        return
    for key, path in inputs.items():
        if path is not None and not os.path.exists(path):  # of names that are too long, Path.exists raises
            yield RunError(
                f"'{path}' does not exist.",
                key=key,
                value=path,
                cause=f"Nothing lies at {Path(path).absolute()}.",
                remedy=INPUTS[key] + _near(Path(path)),
                exit_status=ExitStatus.bad_input,
            )


def name_is_below_runs(config: RunConfig) -> Faults:
    """The name of the run is that of a folder below runs/."""
    parts = Path(config.name).parts
    longest = max((len(part.encode(errors="replace")) for part in parts), default=0)
    if longest > LONGEST_NAME:
        yield RunError(
            f"The name of the run has a part of {longest} bytes.",
            key="name",
            value=f"{config.name[:60]}…",
            cause=f"File systems take names of {LONGEST_NAME} bytes, and the run folder is runs/<name>/<time>.",
            remedy="Take a shorter name.",
        )
        return
    if not parts or ".." in parts or Path(config.name).is_absolute() or not config.name.isprintable():
        yield RunError(
            "The name of the run is not that of a folder below runs/.",
            key="name",
            value=ascii(config.name),
            cause="The run folder is runs/<name>/<time>, and the name stands in reports and trackers.",
            remedy="Take letters and digits, or a/b for a folder in a folder; output_dir takes any folder.",
        )


def output_is_a_folder(config: RunConfig) -> Faults:
    """The run folder is not a file, and its names are not longer than file systems take."""
    for key, path in {"output_dir": config.output_dir, "cache_dir": config.cache_dir}.items():
        longest = max((len(part.encode(errors="replace")) for part in Path(path or "").parts), default=0)
        if longest > LONGEST_NAME:
            yield RunError(
                f"'{key}' has a name of {longest} bytes.",
                key=key,
                value=f"{str(path)[:60]}…",
                cause=f"File systems take names of {LONGEST_NAME} bytes.",
                remedy="Take shorter names.",
            )
    if config.output_dir is not None and os.path.exists(config.output_dir) and not os.path.isdir(config.output_dir):
        yield RunError(
            f"'{config.output_dir}' is a file, not a folder.",
            key="output_dir",
            value=config.output_dir,
            remedy="Name a folder, or leave it out: runs/<name>/<time> is made.",
        )


def _near(path: Path) -> str:
    """Return a sentence on similar names in the nearest existing parent folder; "" without one."""
    folder = next(parent for parent in path.absolute().parents if os.path.isdir(parent))
    missing = path.absolute().relative_to(folder).parts[0]
    try:
        there = [entry.name for entry in folder.iterdir()]
    except OSError as error:
        return f" {folder} cannot be listed: {error.strerror}."
    close = difflib.get_close_matches(missing, there, n=3)
    return f" Similar in {folder}: {', '.join(close)}." if close else ""


def declared_changes_can_be_made(config: RunConfig) -> Faults:
    """Features are named as text, factors and offsets are numbers, and changes of pictures are known."""
    keys = config.demos.keys
    faults = {
        "demos.keys.state": _fault_of_features(keys.state),
        "demos.keys.action": _fault_of_features(keys.action),
        "demos.keys.scale": _fault_of_numbers(keys.scale, is_factor=True),
        "demos.keys.offset": _fault_of_numbers(keys.offset, is_factor=False),
        "demos.keys.pictures": _fault_of_pictures(keys.pictures),
    }
    for key, fault in faults.items():
        if fault is not None:
            yield RunError(
                "The dataset cannot be read as declared.",
                key=key,
                value=getattr(keys, key.rpartition(".")[2]),
                cause=f"{fault}.",
                remedy="docs/howto/demonstrations.md shows each form.",
            )


def _fault_of_features(named: Any) -> str | None:
    names = named if isinstance(named, list) else [] if named is None else [named]
    if all(isinstance(name, str) for name in names) and (names or named is None):
        return None
    return f"It is {named!r}, and must be the name of a feature, or a list of names"


def _fault_of_numbers(declared: Mapping[str, Any], is_factor: bool) -> str | None:
    """Return why demos.keys.scale (is_factor) or demos.keys.offset cannot be used; None: it can."""
    for name, value in declared.items():
        if str(name).partition("/")[0] not in CHANGED_NUMBERS:
            return f"{name} is none of {', '.join(CHANGED_NUMBERS)}, and no number of them such as action/7"
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or (is_factor and value == 0):
            return f"{name} is {value!r}, and must be a finite number{' other than 0' if is_factor else ''}"
    return None


def _fault_of_pictures(declared: Mapping[str, Any]) -> str | None:
    """Return why demos.keys.pictures cannot be used; None: it can."""
    for name, changes in declared.items():
        if not isinstance(changes, list) or not changes or any(change not in PICTURE_CHANGES for change in changes):
            return f"{name} is {changes!r}, and must be a list of {', '.join(PICTURE_CHANGES)}"
    return None
