"""Provenance of a configuration: where each value came from, and the text that a run records of it."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib import metadata
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from rlrun.config.registry import REGISTRIES, packages
from rlrun.config.schema import RunConfig
from rlrun.config.sections import AUTO, NO_KEY, KindSection
from rlrun.system.errors import CONFIG

_BEGIN = "# mark of the user whose run wrote this file: "
_OTHERS = 0o077  # permissions of group and others
CHECKPOINTS = "checkpoints"  # in a run folder
POLICY_CONFIG = "run.yaml"  # in an exported policy folder, and in the one of each checkpoint
PROVENANCE = "provenance.json"  # in a run folder
SHOWN = 8  # missing keys named in a message
ABSENT = object()
_HEAD = 400  # characters, within which the line is; the user's mark may come before it
_FIRST_LINE = "# rlrun {version} wrote this configuration; sha256 of the lines below: {digest}\n"
_WRITTEN_BY = re.compile(
    r"^# rlrun ([\w.+!-]+) wrote this configuration; sha256 of the lines below: ([0-9a-f]{64})\s*\n", re.MULTILINE
)
PACKAGES = ("rlrun", "torch", "ray", "transformers", "numpy", "hydra-core", "omegaconf", "sglang")


class Author(Enum):
    """Author of a recorded configuration; the values continue a sentence that begins with the name of the file."""

    own = "was written by a run of yours"
    changed = "was changed, or cut short, after a run of yours wrote it"
    other = "was not written by a run of yours on this machine"


def key_file() -> Path:
    """Return the file of the secret. Raises RuntimeError if the user has no home folder."""
    return Path.home() / ".rlrun" / "mark_key"


def can_mark() -> bool:
    """Return whether this user has a secret, or can make one."""
    return _secret(is_made=True) is not None


def why_unmarked() -> str:
    """Return the reason why this user has no secret. Example: "No writable home folder"."""
    with suppress(OSError, RuntimeError):
        if key_file().exists():
            return f"{key_file()} is damaged, or another user may read it"
    return "No writable home folder"


def marked(text: str) -> str:
    """Return `text` with the mark before it; without, where the home folder cannot hold a secret."""
    secret = _secret(is_made=True)
    return text if secret is None else f"{_BEGIN}{_number(secret)} {_digest(secret, text)}\n{text}"


def author_of(text: str) -> Author:
    """Return the author of the text of a recorded configuration."""
    first, _, rest = text.partition("\n")
    secret = _secret(is_made=False)
    if secret is None or not first.startswith(_BEGIN):
        return Author.other
    number, _, digest = first.removeprefix(_BEGIN).partition(" ")
    if hmac.compare_digest(digest.encode(), _digest(secret, rest).encode()):
        return Author.own
    return Author.changed if number == _number(secret) else Author.other


def _secret(is_made: bool) -> bytes | None:
    """Return the user's secret; None: there is none, it cannot be made, or others could have read it."""
    with suppress(OSError, RuntimeError, ValueError):
        file = key_file()
        if is_made and not file.exists():
            _make(file)
        with file.open() as stream:
            status = os.fstat(stream.fileno())
            secret = bytes.fromhex(stream.read().strip())
        if len(secret) == 32 and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS:
            return secret
    return None


def _make(file: Path) -> None:
    """Write a new secret at once: of several processes that do so, all use the first one's."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
            stream.write(secrets.token_hex(32))
        try:
            os.link(draft, file)
        except FileExistsError:
            return
        except OSError:  # a file system without links
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _digest(secret: bytes, text: str) -> str:
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def _number(secret: bytes) -> str:
    """Return eight digits of the secret, by which the marks of several users can be told apart."""
    return hashlib.sha256(b"number" + secret).hexdigest()[:8]


@dataclass(frozen=True)
class Origin:
    """Author of a file. version: of rlrun; None if the file does not say it. is_as_written: its checksum fits."""

    version: str | None
    is_as_written: bool

    @property
    def writer(self) -> str:
        """The writer in words."""
        return f"rlrun {self.version}" if self.version else "an unknown version of rlrun"

    @property
    def is_newer(self) -> bool:
        """Whether a newer version than this one wrote it."""
        return _order(self.version) > _order(own_version())


def own_version() -> str:
    """Return the version of this rlrun."""
    return version("rlrun")


def signed(text: str) -> str:
    """Return the text of a configuration below a line that says who wrote it."""
    return _FIRST_LINE.format(version=own_version(), digest=_text_digest(text)) + text


def origin_of(file: Path) -> Origin:
    """Return the author of a file of `signed`; provenance.json and the checksums of a policy folder count too."""
    text = file.read_text(encoding="utf-8", errors="replace")
    header = _WRITTEN_BY.search(text[:_HEAD])
    checksum = None
    said = [header[1]] if header else []
    with suppress(OSError, ValueError, LookupError, TypeError):
        said.append(str(json.loads((file.parent / PROVENANCE).read_text())["packages"]["rlrun"]))
    with suppress(OSError, ValueError, LookupError, TypeError):
        checksum = json.loads((file.parent / "checksums.json").read_text())["files"][file.name]["sha256"]
    is_fitting = header is not None and _text_digest(text[header.end() :]) == header[2]
    return Origin(max(said, key=_order, default=None), is_fitting or checksum == [_text_digest(text)])


def copy_of(file: Path) -> Path | None:
    """Return the copy of a run folder's configuration in its newest checkpoint or its policy; None if none is whole."""
    for place in (*sorted((file.parent / CHECKPOINTS).glob("step_*"), reverse=True), file.parent):
        copy = place / "policy" / POLICY_CONFIG
        if copy != file and copy.is_file() and origin_of(copy).is_as_written:
            return copy
    return None


def missing(tree: Mapping[str, Any], known: Sequence[str], sections: Sequence[str]) -> list[str]:
    """Return the keys that a tree lacks. known: keys of the schema. sections: those of kinds that are not chosen."""
    expected = [key for key in known if not any(key.startswith(f"{section}.") for section in sections)]
    return [key for key in expected if selected(tree, key, ABSENT) is ABSENT]


def selected(tree: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value of a key such as "actor.lr"; `default` if there is none."""
    value: Any = tree
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def changes(
    was: Mapping[str, Any], now: Mapping[str, Any], free: Sequence[str], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield each key that both trees have with different values, and a sentence. free: keys with mappings as values.

    Example: ("actor.lr", "actor.lr was 0.0003, is 0.5").
    """
    for name, value in now.items():
        key = f"{prefix}{name}"
        if name not in was or was[name] == value:
            continue
        if isinstance(value, Mapping) and isinstance(was[name], Mapping) and key not in free:
            yield from changes(was[name], value, free, f"{key}.")
        else:
            yield key, f"{key} was {format_value(was[name])}, is {format_value(value)}"


def format_value(value: Any) -> str:
    """Return a value as written on the command line. Example: ["a", None] -> "[a,null]"."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}: {format_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(format_value, value))}]"
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def _order(said: str | None) -> Version:
    try:
        return Version(said or "0")
    except InvalidVersion:
        return Version("0")


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def write(config: RunConfig, folder: Path, num_steps: int = 0) -> None:
    """Write config.yaml, config_diff.yaml and provenance.json into the run folder.

    A config.yaml that says something else is kept as config_to_step_<N>.yaml. num_steps: the steps trained so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / CONFIG
    text = recorded_yaml(config)
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
    for key in config.auto:
        section, _, name = key.partition(".")
        tree[section][name] = AUTO
    return tree


def _plain(value: Any) -> Any:
    """Return plain data. OmegaConf cannot do this for frozen mappings, such as the node groups of a placement."""
    if is_dataclass(value):
        names = [field.name for field in fields(value) if not field.metadata.get(NO_KEY)]
        kinds = value.sections if isinstance(value, KindSection) else {}
        return {name: _plain(getattr(value, name)) for name in names} | {name: _plain(kinds[name]) for name in kinds}
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
    differing: dict[str, Any] = {}
    for key, value in tree.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            if below := _difference(value, default):
                differing[key] = below
        elif value != default:
            differing[key] = value
    return differing


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
