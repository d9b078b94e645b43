"""The text of a recorded configuration: who wrote it, whether it is as it was written, and which keys it lacks.

A comment before it has the version of rlrun and a checksum of the lines below. A file that is as it was written may
lack keys that its version did not have; any other one must have them all, since it was cut or edited.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

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


@dataclass(frozen=True)
class Origin:
    """Who wrote a file. version: of rlrun; None if nothing says it. is_as_written: its checksum fits."""

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
    return _FIRST_LINE.format(version=own_version(), digest=_digest(text)) + text


def origin_of(file: Path) -> Origin:
    """Return who wrote a file of `signed`; provenance.json and the checksums of a policy folder count too."""
    text = file.read_text(encoding="utf-8", errors="replace")
    found, checksum = _WRITTEN_BY.search(text[:_HEAD]), None
    said = [found[1]] if found else []
    with suppress(OSError, ValueError, LookupError, TypeError):
        said.append(str(json.loads((file.parent / PROVENANCE).read_text())["packages"]["rlrun"]))
    with suppress(OSError, ValueError, LookupError, TypeError):
        checksum = json.loads((file.parent / "checksums.json").read_text())["files"][file.name]["sha256"]
    is_fitting = found is not None and _digest(text[found.end() :]) == found[2]
    return Origin(max(said, key=_order, default=None), is_fitting or checksum == [_digest(text)])


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
    found: Any = tree
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found


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
            yield key, f"{key} was {spelled(was[name])}, is {spelled(value)}"


def spelled(value: Any) -> str:
    """Return a value as written on the command line. Example: ["a", None] -> "[a,null]"."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}: {spelled(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(spelled, value))}]"
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def _order(said: str | None) -> Version:
    try:
        return Version(said or "0")
    except InvalidVersion:
        return Version("0")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
