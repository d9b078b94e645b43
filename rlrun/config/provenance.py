"""The provenance of a run: resolved configuration, difference from the defaults, commit, package versions."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from rlrun.config.own_mark import marked
from rlrun.config.recorded_text import signed
from rlrun.config.registry import REGISTRIES, packages
from rlrun.config.schema import RunConfig
from rlrun.config.sealing import NO_KEY, OpenSection

PACKAGES = ("rlrun", "torch", "ray", "transformers", "numpy", "hydra-core", "omegaconf", "sglang")


def write(config: RunConfig, folder: Path, num_steps: int = 0) -> None:
    """Write config.yaml, config_diff.yaml and provenance.json into the run folder.

    A config.yaml that says something else is kept as config_to_step_<N>.yaml. num_steps: the steps trained so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place, text = folder / "config.yaml", recorded_yaml(config)
    if place.exists() and place.read_bytes() != text.encode():
        os.replace(place, _unused(folder, f"config_to_step_{num_steps:08d}"))
    _put(place, text)
    _put(folder / "config_diff.yaml", _yaml(diff_from_defaults(config)))
    _put(folder / "provenance.json", json.dumps(origin(), indent=2) + "\n")


def _put(place: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = place.with_name(f".{place.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, place)


def _unused(folder: Path, stem: str) -> Path:
    names = itertools.chain([f"{stem}.yaml"], (f"{stem}_{number}.yaml" for number in itertools.count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


def write_config(config: RunConfig, file: Path) -> None:
    """Write every key with its value, marked as this user's."""
    file.write_text(recorded_yaml(config), encoding="utf-8")


def config_yaml(config: RunConfig) -> str:
    """Return every key with its value, as YAML that `load` can read."""
    return _yaml(as_tree(config))


def recorded_yaml(config: RunConfig) -> str:
    """Return `config_yaml` below two lines: the user's mark; who wrote it, and whether the text is whole later."""
    return marked(signed(config_yaml(config)))


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
