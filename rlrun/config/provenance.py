"""The provenance of a run: resolved configuration, difference from the defaults, commit, package versions."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from rlrun.config import own_mark
from rlrun.config.registry import REGISTRIES, packages
from rlrun.config.schema import RunConfig
from rlrun.config.sealing import NO_KEY, OpenSection

PACKAGES = ("rlrun", "torch", "ray", "transformers", "numpy", "hydra-core", "omegaconf", "sglang")


def write(config: RunConfig, folder: Path) -> None:
    """Write config.yaml, config_diff.yaml and provenance.json into the run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(config, folder / "config.yaml")
    (folder / "config_diff.yaml").write_text(_yaml(diff_from_defaults(config)))
    (folder / "provenance.json").write_text(json.dumps(origin(), indent=2) + "\n")


def write_config(config: RunConfig, file: Path) -> None:
    """Write every key with its value, marked as this user's."""
    file.write_text(own_mark.marked(config_yaml(config)))


def config_yaml(config: RunConfig) -> str:
    """Return every key with its value, as YAML that `load` can read."""
    return _yaml(as_tree(config))


def as_tree(config: RunConfig) -> dict[str, Any]:
    """Return the configuration as nested plain dicts, with enums by name."""
    tree = _plain(config)
    assert isinstance(tree, dict)
    return tree


def _plain(value: Any) -> Any:
    """Return plain data. OmegaConf cannot do this for sealed mappings, such as the node groups of a placement."""
    if is_dataclass(value):
        own = [field.name for field in fields(value) if not field.metadata.get(NO_KEY)]
        kinds = value.sections if isinstance(value, OpenSection) else {}
        return {name: _plain(getattr(value, name)) for name in own} | {name: _plain(kinds[name]) for name in kinds}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value


def diff_from_defaults(config: RunConfig) -> dict[str, Any]:
    """Return the keys that differ from the schema's defaults. Example: {"env": {"num_envs": 4}}."""
    defaults = RunConfig()
    for parent in (registry.parent for registry in REGISTRIES):
        kinds = getattr(config, parent).sections
        getattr(defaults, parent).sections = {name: type(section)() for name, section in kinds.items()}
    return _difference(as_tree(config), as_tree(defaults))


def origin() -> dict[str, Any]:
    """Return the git commit (None outside a repository), whether files differ from it, Python and package versions."""
    commit = _git("rev-parse", "HEAD")
    return {
        "commit": commit,
        "is_modified": bool(_git("status", "--porcelain")) if commit else None,
        "python": platform.python_version(),
        "packages": {name: version for name in (*PACKAGES, *packages()) if (version := _version(name))},
    }


def _difference(tree: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            if below := _difference(value, default):
                found[key] = below
        elif value != default:
            found[key] = value
    return found


def _yaml(tree: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(tree, sort_keys=False, width=120)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Return the output of git in the folder of this source; None without git or outside a repository."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
