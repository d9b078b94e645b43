"""A folder that holds only low-rank adapters, by peft, and the folder of the policy that they change; without torch."""

from __future__ import annotations

from pathlib import Path

from rlrun.policies.weight_headers import readable
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
_BASE_KEY = "base_model_name_or_path"


def has_only_adapters(folder: Path) -> bool:
    """Return whether a folder has adapters and no weights of its own."""
    return {file.name for file in folder.glob("*.safetensors")} == {ADAPTER_FILE}


def base_of(folder: Path) -> Path:
    """Return the folder of the base policy, which adapter_config.json names: absolute, or relative to `folder`.

    Raises RunError if it is not on this machine; nothing is downloaded.
    """
    file = folder / ADAPTER_CONFIG
    named = readable(file, lambda: str(read_json(file)[_BASE_KEY]))
    base = folder / named
    if not base.is_dir() or has_only_adapters(base):
        raise RunError(
            f"The policy folder {folder} has only adapters, and the policy that they change is not at {base}.",
            key="policy.path",
            value=str(folder),
            cause=f"{ADAPTER_CONFIG} names it {named!r}; nothing is downloaded",
            remedy=f"Download {named}, and write its folder into {file} as {_BASE_KEY}.",
            exit_status=ExitStatus.bad_input,
        )
    return base
