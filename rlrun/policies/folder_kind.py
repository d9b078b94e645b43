"""Which installed kind of policy a folder is of, by its config.json; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.policies.spec import PolicySpec, policy_spec
from rlrun.policies.weight_headers import readable
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json

CONFIG_FILE = "config.json"
INNER_FOLDER = "pretrained_model"  # in which LeRobot's training checkpoints hold the policy


def spec_of(folder: Path, run: RunConfig | None) -> PolicySpec:
    """Return the kind of policy in a folder; without config.json that of the run, whose opener says what is missing.

    Raises RunError that names the folder's own type if it is not the kind of the run, or if no installed kind opens it.
    """
    described = _described(folder / CONFIG_FILE)
    if run is not None:
        wanted = policy_spec(run)
        if described is None or _recognizes(wanted, described):
            return wanted
    if described is None:
        raise _without_description(folder)
    found: PolicySpec | None = next((spec for spec in POLICIES.installed() if _recognizes(spec, described)), None)
    if found is None:
        raise _of_no_kind(folder, described)
    if run is not None:
        raise unfit(folder, "policy.kind", run.policy.kind, found.name, f"It is of {type_in(described)}.")
    return found


def type_in(described: Mapping[str, Any]) -> str:
    """Return what a config.json says of the policy, in words. Example: "LeRobot's type 'act'"."""
    for key, whose in (("type", "LeRobot's"), ("model_type", "transformers'")):
        if isinstance(described.get(key), str):
            return f"{whose} {key} {described[key]!r}"
    return f"a kind that its {CONFIG_FILE} does not name, as it has neither `type` nor `model_type` in words"


def unfit(folder: Path, key: str, wanted: object, found: object, cause: str | None = None) -> RunError:
    """Return the error of a policy that is fine, but not for this run. found: the value of `key` that fits it."""
    return RunError(
        f"The policy in {folder} does not fit the run.",
        key=key,
        value=wanted,
        cause=cause or f"The policy was made with {found}.",
        remedy=f"Set {key}={found}, or take another policy.",
        exit_status=ExitStatus.bad_input,
    )


def _described(file: Path) -> dict[str, Any] | None:
    """Return config.json; None: there is none. Raises RunError for a damaged one."""

    def read() -> dict[str, Any]:
        found = read_json(file)
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not an object")
        return found

    return readable(file, read) if file.is_file() else None


def _recognizes(spec: PolicySpec, described: dict[str, Any]) -> bool:
    """Return whether a folder is of a kind, which may have looked for other types in its config.json."""
    with suppress(TypeError, ValueError, LookupError, AttributeError):
        return bool(spec.recognizes(described))
    return False


def _without_description(folder: Path) -> RunError:
    inner = folder / INNER_FOLDER
    is_inside = (inner / CONFIG_FILE).is_file()
    return RunError(
        f"There is no policy in {folder}: {CONFIG_FILE} is missing.",
        key="policy.path",
        value=str(folder),
        remedy=f"Give {inner}." if is_inside else "Give the folder of a checkpoint, which has it beside the weights.",
        exit_status=ExitStatus.bad_input,
    )


def _of_no_kind(folder: Path, described: Mapping[str, Any]) -> RunError:
    return RunError(
        f"The policy in {folder} is of {type_in(described)}; no installed kind opens it.",
        key="policy.path",
        value=str(folder),
        cause=f"Installed kinds: {', '.join(POLICIES.names())}.",
        remedy="Give the folder of a policy of one of these kinds, or install the package that brings the other kind.",
        exit_status=ExitStatus.bad_input,
    )
