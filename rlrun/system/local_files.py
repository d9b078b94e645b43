"""Bounded reads of YAML and JSON, locked temporary folders, and the folder for Ray's temporary files.

YAML and JSON that others may have written are bounded in size, in depth, and in the nodes that aliases multiply to.
A temporary folder for Ray is locked while a process uses it; the next start removes those of dead processes.
"""

from __future__ import annotations

import errno
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

from rlrun.system.errors import ExitStatus, RunError

MAX_DEPTH = 64  # of nested lists and mappings
MAX_YAML_BYTES = 4 * 1024**2
MAX_YAML_NODES = 200_000  # an alias counts as all that it stands for
MAX_JSON_BYTES = 256 * 1024**2
_LOCK_FILE = "in-use"
_INNER_FOLDER = "r"  # short, since Ray's sockets in it have paths of limited length
RAY_TMPDIR = "RAY_TMPDIR"
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # tried where a named folder cannot hold Ray's
_PROBE_PREFIX = "rlrun-probe-"
_NO_LOCKS = "its file system has no file locks, by which folders of living runs are told from those of dead ones"
_WHY = {  # by errno
    errno.ENOENT: "it does not exist",
    errno.ENOTDIR: "it is no folder",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
    errno.EROFS: "it is read-only",
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "this user's quota is used up there",
    **dict.fromkeys((errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL), _NO_LOCKS),
}
_TMPDIR_VARIABLES = ("TMPDIR", "TEMP", "TMP")  # in the order in which Python's tempfile reads them


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file, of plain types as by `yaml.safe_load`.

    Raises OSError, and ValueError with the cause for a corrupted or unbounded file.
    """
    return parse_yaml(read_text(file))


def parse_yaml(text: str) -> Any:
    """Parse YAML text. Raises ValueError like `read_yaml`."""
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

    with suppress(yaml.YAMLError):  # the other library reports invalid YAML
        _check_events(yaml.parse(read_text(file), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def read_json(file: Path) -> Any:
    """Return the content of a JSON file. Raises like `read_yaml`."""
    return parse_json(read_text(file, MAX_JSON_BYTES))


def parse_json(text: str) -> Any:
    """Parse JSON text. Raises ValueError like `read_yaml`."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(content)
    return content


def read_text(file: Path, max_bytes: int = MAX_YAML_BYTES) -> str:
    """Return the text of a UTF-8 file. Raises OSError, and ValueError for invalid UTF-8 or as `require_regular`."""
    require_regular(file, max_bytes)
    with file.open("rb") as stream:
        content = stream.read(max_bytes + 1)  # the file may grow
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return content.decode("utf-8")


def require_regular(file: Path, max_bytes: int | None = None) -> None:
    """Raise ValueError if a path is a pipe, socket or device, which may never answer, or is larger than `max_bytes`.

    Raises OSError, also for a folder.
    """
    status = file.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file, but a pipe, socket or device")
    if max_bytes is not None and status.st_size > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")


def _check_events(events: Any) -> None:
    """Raise ValueError for too many or too deeply nested nodes; a node counts once for each alias that repeats it."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    anchored: dict[str, tuple[int, int]] = {}  # anchor -> (nodes, height) of its node
    opened: list[list[Any]] = [[None, 0, 0]]  # anchor, nodes, height of each collection that has not ended
    for event in events:
        if isinstance(event, CollectionStartEvent):
            opened.append([event.anchor, 1, 0])
            name = None
            nodes = 0
            height = 0
        elif isinstance(event, AliasEvent):
            if event.anchor not in anchored:
                raise ValueError(f"the alias *{event.anchor} stands for something that contains it")
            name = None
            (nodes, height) = anchored[event.anchor]
        elif isinstance(event, CollectionEndEvent):
            name, nodes, height = opened.pop()
            height += 1
        elif isinstance(event, ScalarEvent):
            name = event.anchor
            nodes = 1
            height = 0
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
    level = [content]
    depth = 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        level = [below for item in level for below in (item.values() if isinstance(item, dict) else item)]


def _too_deep() -> ValueError:
    return ValueError(f"its lists and mappings nest deeper than {MAX_DEPTH} levels")


class LockedFolder:
    """A new folder "<parent>/<prefix>…", removed by `close`, or after a crash by `remove_stale`.

    The kernel releases the lock when its process ends for any reason, so that a folder without a held lock is stale.
    Containers and hosts that share the disk see each other's locks. Only this user can enter the folder. Ray makes its
    folder accessible to everyone, and therefore gets `inner`.
    """

    def __init__(self, parent: str | None, prefix: str):
        """parent: None for the temporary folder of the system. Raises OSError, and leaves nothing behind."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self.inner = self.path / _INNER_FOLDER
        draft = self.path / f"{_LOCK_FILE}.draft"  # renamed once the lock is held
        self._lock = os.open(draft, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.write(self._lock, f"{os.getpid()}\n".encode())
            draft.rename(self.path / _LOCK_FILE)
            self.inner.mkdir()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def unfit_folder(parent: TemporaryFolder, error: OSError, key: str) -> RunError:
    """Return the error of a parent in which no `LockedFolder` can be made. key: what names another one.

    The remedy names a folder in which one was made.
    """
    by = f", which {parent.source} names," if parent.source not in ("", key) else ""
    why = _WHY.get(error.errno or 0, "nothing can be made in it")
    other = next((place for place in _PLACES if place != parent.path and _holds_folders(place)), None)
    named = f"Set {key}={other}, where that works" if other else f"Name a folder of a local disk in {key}"
    return RunError(
        f"{parent.path}{by} cannot hold Ray's temporary folder: {why}.",
        key=parent.source or key,
        value=parent.path,
        cause=f"{type(error).__name__}: {error}",
        remedy=f"{named}; or make that folder." if error.errno == errno.ENOENT else f"{named}.",
        exit_status=ExitStatus.storage,
    )


def _holds_folders(place: str) -> bool:
    try:
        LockedFolder(place, _PROBE_PREFIX).close()
    except OSError:
        return False
    return True


def open_parent(folder: Path) -> Path | None:
    """Return a parent in which other users may rename the folder (world-writable, not sticky); None: there is none.

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


def lock_holder(folder: Path) -> int:
    """Return the id of the process that holds the lock of a folder, or held it last. Raises OSError."""
    return int((folder / _LOCK_FILE).read_text())


def lock_holders(parents: Sequence[str], prefix: str) -> list[int]:
    """Return the ids of this user's processes that hold locked folders, read from the lock files."""
    locks = [lock for parent in dict.fromkeys(parents) for lock in sorted(Path(parent).glob(f"{prefix}*/{_LOCK_FILE}"))]
    living = [lock for lock in locks if lock.stat().st_uid == os.getuid() and not _is_stale(lock.parent)]
    return sorted({lock_holder(lock.parent) for lock in living})


def _is_stale(folder: Path) -> bool:
    """Return whether the folder belongs to this user and its lock is free; one without a lock file is being created."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is held, or this file system has no locks any more: the folder may be in use
        return False
    finally:
        os.close(descriptor)
    return True


class TemporaryFolder(NamedTuple):
    """A folder, and the key or variable that sets it; "": the system's. Example: ("/data/ray", "RAY_TMPDIR")."""

    path: str
    source: str


def folder_for_ray(named: str | None) -> TemporaryFolder:
    """Return the parent of Ray's session folders. named: `cluster.temp_dir`, which overrides every variable.

    Ray documents RAY_TMPDIR as its base folder. TMPDIR, TEMP and TMP decide the system's temporary folder.
    """
    if named is not None:
        return TemporaryFolder(named, "cluster.temp_dir")
    if of_ray := os.environ.get(RAY_TMPDIR):
        return TemporaryFolder(os.path.abspath(of_ray), RAY_TMPDIR)
    folder = tempfile.gettempdir()
    for variable in _TMPDIR_VARIABLES:
        if (value := os.environ.get(variable)) and Path(value).absolute() == Path(folder):
            return TemporaryFolder(folder, variable)
    return TemporaryFolder(folder, "")
