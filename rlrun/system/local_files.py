"""Files and folders: reads of bounded size, folders that one process at a time holds, short temporary ones."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

MAX_DEPTH = 64  # of nested lists and mappings
MAX_YAML_BYTES = 4 * 1024**2
MAX_YAML_NODES = 200_000  # an alias counts as all that it stands for
MAX_JSON_BYTES = 256 * 1024**2


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file. Raises OSError, and ValueError with the cause for a damaged or unbounded one.

    Only plain types are made, as by `yaml.safe_load`.
    """
    return parse_yaml(read_text(file))


def parse_yaml(text: str) -> Any:
    """Return the content of the text of a YAML file; raises as `read_yaml`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except ValueError:
        raise
    # PyYAML raises the last four for tagged scalars such as `!!int ""`
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def require_bounded(file: Path) -> None:
    """Raise ValueError if a YAML file that another library will read is unbounded. Raises OSError."""
    import yaml

    with suppress(yaml.YAMLError):  # that library says what is no YAML
        _check_events(yaml.parse(read_text(file), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def read_json(file: Path) -> Any:
    """Return the content of a JSON file; raises as `read_yaml`."""
    return parse_json(read_text(file, MAX_JSON_BYTES))


def parse_json(text: str) -> Any:
    """Return the content of a JSON text. Raises ValueError as `read_yaml`."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(content)
    return content


def read_text(file: Path, max_bytes: int = MAX_YAML_BYTES) -> str:
    """Return the text of a file in UTF-8. Raises OSError, and ValueError for other bytes or too many."""
    with file.open("rb") as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return content.decode("utf-8")


def _check_events(events: Any) -> None:
    """Raise ValueError if the nodes, each counted as often as aliases repeat it, are too many or too deep."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    anchored: dict[str, tuple[int, int]] = {}  # name -> (nodes, height) of what an alias stands for
    opened: list[list[Any]] = [[None, 0, 0]]  # name, nodes, height of each collection that has not ended
    for event in events:
        if isinstance(event, CollectionStartEvent):
            opened.append([event.anchor, 1, 0])
            name, nodes, height = None, 0, 0
        elif isinstance(event, AliasEvent):
            if event.anchor not in anchored:
                raise ValueError(f"the alias *{event.anchor} stands for something that contains it")
            name, (nodes, height) = None, anchored[event.anchor]
        elif isinstance(event, CollectionEndEvent):
            name, nodes, height = opened.pop()
            height += 1
        elif isinstance(event, ScalarEvent):
            name, nodes, height = event.anchor, 1, 0
        else:
            continue
        if name is not None:
            anchored[name] = nodes, height
        around = opened[-1]
        around[1], around[2] = around[1] + nodes, max(around[2], height)
        if len(opened) + height > MAX_DEPTH:
            raise _too_deep()
        if around[1] > MAX_YAML_NODES:
            raise ValueError(f"it has more than {MAX_YAML_NODES} entries once its aliases are replaced")


def _check_depth(content: Any) -> None:
    level, depth = [content], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        level = [below for item in level for below in (item.values() if isinstance(item, dict) else item)]


def _too_deep() -> ValueError:
    return ValueError(f"its lists and mappings nest deeper than {MAX_DEPTH} levels")


_LOCK = "in-use"
_INNER = "r"  # short, since Ray's sockets in it have paths of limited length


class LockedFolder:
    """A new folder "<parent>/<prefix>…", removed by `close`, or after a crash by `remove_stale`.

    The kernel releases the lock when its process ends for any reason, so that a folder without a held lock is stale.
    Containers and hosts that share the disk see each other's locks. Only this user can enter the folder. Ray opens the
    one that it is given to everyone, and therefore gets `inner`.
    """

    def __init__(self, parent: str | None, prefix: str):
        """parent: None for the temporary folder of the system."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        draft = self.path / f"{_LOCK}.draft"  # renamed once the lock is held
        self._lock = os.open(draft, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, f"{os.getpid()}\n".encode())
        draft.rename(self.path / _LOCK)
        self.inner = self.path / _INNER
        self.inner.mkdir()

    def close(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def open_parent(folder: Path) -> Path | None:
    """Return the folder above in which other users may rename this one: writable for all, and not sticky; None: none.

    Example: open_parent(Path("/data/rlrun-ray-1a2b3c4d")) == Path("/data")
    """
    modes = ((parent, parent.stat().st_mode) for parent in folder.absolute().parents)
    return next((parent for parent, mode in modes if mode & stat.S_IWOTH and not mode & stat.S_ISVTX), None)


def stale_folders(parents: Sequence[str], prefix: str) -> list[Path]:
    """Return the folders of dead processes of this user."""
    return [
        folder
        for parent in dict.fromkeys(parents)
        for folder in sorted(Path(parent).glob(f"{prefix}*"))
        if _is_stale(folder)
    ]


def remove_stale(parents: Sequence[str], prefix: str) -> list[Path]:
    """Remove the folders of dead processes of this user. Returns their paths."""
    removed = stale_folders(parents, prefix)
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def holder(folder: Path) -> int:
    """Return the id of the process that holds a folder, or held it. Raises OSError."""
    return int((folder / _LOCK).read_text())


def holders(parents: Sequence[str], prefix: str) -> list[int]:
    """Return the ids of this user's processes that hold such folders, from their lock files."""
    locks = [lock for parent in dict.fromkeys(parents) for lock in sorted(Path(parent).glob(f"{prefix}*/{_LOCK}"))]
    living = [lock for lock in locks if lock.stat().st_uid == os.getuid() and not _is_stale(lock.parent)]
    return sorted({holder(lock.parent) for lock in living})


def _is_stale(folder: Path) -> bool:
    """Return whether the folder is this user's and its lock is free. Without a lock file it is being created."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


RAY_VARIABLE = "RAY_TMPDIR"
_VARIABLES = ("TMPDIR", "TEMP", "TMP")  # in the order in which Python's tempfile reads them


class TemporaryFolder(NamedTuple):
    """A folder, and the key or variable that names it; "": the system's own. Example: ("/data/ray", "RAY_TMPDIR")."""

    path: str
    source: str


def folder_for_ray(named: str | None) -> TemporaryFolder:
    """Return the folder that Ray's go into. named: `cluster.temp_dir`, which goes before every variable.

    Ray documents RAY_TMPDIR as its base folder. TMPDIR, TEMP and TMP decide the system's temporary folder.
    """
    if named is not None:
        return TemporaryFolder(named, "cluster.temp_dir")
    if of_ray := os.environ.get(RAY_VARIABLE):
        return TemporaryFolder(os.path.abspath(of_ray), RAY_VARIABLE)
    folder = tempfile.gettempdir()
    for variable in _VARIABLES:
        if (value := os.environ.get(variable)) and Path(value).absolute() == Path(folder):
            return TemporaryFolder(folder, variable)
    return TemporaryFolder(folder, "")
