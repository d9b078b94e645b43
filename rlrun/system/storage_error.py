"""Conversion of operating system errors into RunErrors that name the failed operation and its cause.

Full disks, missing folders, folders of other users, and processes or machines without descriptors, threads, memory or
inodes have different messages and remedies.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.system.errors import ExitStatus, RunError, exception_chain

_RESUME = "Then resume the run: its checkpoints are valid."
_FREE_SPACE = (
    f"Free space there, lower checkpoint.keep_last, or point output_dir and cache_dir to another disk. {_RESUME}"
)
_CHECK_MOUNT = (
    "Look at the kernel log and at the mount of {place}, and make it writable again (a file system that found damage "
    "turns read-only until it is checked); then resume the run. Or copy the run folder to another disk and set "
    "output_dir to it."
)
_CHECK_OWNER = (
    "Give this user the right to use {place} (ls -ld shows whose it is, lsattr whether it may be changed), or take "
    "another output_dir; then resume."
)
_FREE_PLACE = (
    "End what uses {place} (fuser -v shows it; on NFS it may be on another machine), or take another output_dir; then "
    "resume the run."
)
NO_INODES = -1  # no errno: ENOSPC on a disk that has bytes left
LOCKED = -2  # no errno: EAGAIN of a file, not of a thread
# they concern the run only if the path is in one of its folders
_FOLDER_ERRORS = (errno.EACCES, errno.EPERM, errno.EBUSY, LOCKED, errno.ENOENT, errno.ENAMETOOLONG)
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_ERRNO_IN_TEXT = re.compile(r"os error (\d+)|\[Errno (\d+)\]|errno[ =:]+(\d+)")  # in messages of libraries
_PHRASES = {
    os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
} | {"can't start new thread": errno.EAGAIN, "pthread_create failed": errno.EAGAIN}


@dataclass(frozen=True)
class _Cause:
    text: str
    remedy: str
    is_disk: bool = True  # False: the process or machine has run short of something


_CAUSES = {
    errno.ENOSPC: _Cause("a disk is full", _FREE_SPACE),
    NO_INODES: _Cause(
        "the disk of {place} has no inode left for another file, though bytes are free",
        "Delete small files there (df -i shows their number), or point output_dir and cache_dir to another disk. "
        + _RESUME,
    ),
    errno.EDQUOT: _Cause("the quota of this user on the disk of {place} is used up", _FREE_SPACE),
    errno.EFBIG: _Cause(
        "a limit forbids files of this size (ulimit -f)", f"Raise the limit before the start. {_RESUME}"
    ),
    errno.EROFS: _Cause("the file system of {place} is read-only", _CHECK_MOUNT),
    errno.EIO: _Cause("the disk of {place} reports an error", _CHECK_MOUNT),
    errno.ESTALE: _Cause("the file server no longer knows {place}", _CHECK_MOUNT),
    errno.ENXIO: _Cause("the disk of {place} is gone", _CHECK_MOUNT),
    errno.ENODEV: _Cause("the disk of {place} is gone", _CHECK_MOUNT),
    errno.EACCES: _Cause("this user may not use {place}", _CHECK_OWNER),
    errno.EPERM: _Cause("this user may not use {place}", _CHECK_OWNER),
    errno.EBUSY: _Cause("{place} is in use, or something is mounted there", _FREE_PLACE),
    LOCKED: _Cause("another process has locked {place}", _FREE_PLACE),
    errno.ENOLCK: _Cause(
        "the file system of {place} gives no file lock",
        "Let it have locks (on NFS: mount without nolock, and look whether rpc.statd runs), or point output_dir and "
        f"cache_dir to another disk. {_RESUME}",
    ),
    errno.ENOENT: _Cause(
        "{place} is gone: it was deleted or renamed",
        "Restore the folder or rename it back, then resume the run; or start anew in another output_dir.",
    ),
    errno.ENAMETOOLONG: _Cause(
        "a name in {place} is longer than its file system takes",
        "Take shorter names: most file systems take 255 bytes for each.",
    ),
    errno.EMFILE: _Cause(
        "its process has no file descriptor left",
        "Raise the limit where the process is started (ulimit -n 65536); if `ls -l /proc/PID/fd` shows the same files "
        f"again and again, close what the simulator or library leaves open. {_RESUME}",
        is_disk=False,
    ),
    errno.ENFILE: _Cause(
        "the machine has no file descriptor left, in all processes together",
        f"End what holds them (lsof | wc -l), or raise fs.file-max. {_RESUME}",
        is_disk=False,
    ),
    errno.EAGAIN: _Cause(
        "no further thread or process can be started there",
        "Raise the limit (ulimit -u, pids.max of the container), or end the processes of this user that are left over. "
        + _RESUME,
        is_disk=False,
    ),
    errno.ENOMEM: _Cause(
        "the system gives its process no more memory",
        f"End what else takes memory on the machine, or raise the limit (ulimit -v, memory.max). {_RESUME}",
        is_disk=False,
    ),
}


def is_storage_error(error: BaseException | None) -> bool:
    """Return whether a write failed because a disk is full, or because the disk or its file server fails."""
    known = _CAUSES.get(error.errno or 0) if isinstance(error, OSError) else None
    return known is not None and known.is_disk and isinstance(error, OSError) and error.errno not in _FOLDER_ERRORS


def is_unreadable(error: OSError) -> bool:
    """Return whether a read failed for a reason that says nothing about the content of the file."""
    return error.errno in (*_SHORTAGES, errno.EACCES, errno.EPERM)


def storage_failure(
    error: BaseException, subject: str, folders: Sequence[str] = (), worker: str | None = None, is_own: bool = True
) -> RunError | None:
    """Return the error that ends the run; None if the exception has no known cause in the operating system.

    subject: the operation that failed. folders: the folders that it writes to; their free space is part of the cause.
    worker: the worker to replace if its process lacked a resource. is_own: this process raised the exception.
    """
    number = _explained_errno(error, folders, is_own)
    if number is None:
        return None
    place = _failed_path(error, folders)
    known = _CAUSES[number]
    what = known.text.format(place=place)
    remedy = known.remedy.format(place=place)
    cause = f"{type(error).__name__}: {error}"
    if not known.is_disk:
        return RunError(
            f"{subject} failed: {what}.",
            cause=cause,
            remedy=remedy,
            exit_status=ExitStatus.storage if worker is None else ExitStatus.worker_lost,
            worker=worker,
        )
    is_write = number not in _FOLDER_ERRORS
    free = [f"{folder}: {_free_space(folder)}" for folder in folders] if is_write else []
    return RunError(
        f"{subject} {'could not write' if is_write else 'failed'}: {what}.",
        cause="\n".join([cause, *free]),
        remedy=remedy,
        exit_status=ExitStatus.storage,
    )


def probe_write(folder: Path, num_bytes: int = 0) -> OSError | None:
    """Try to write into a folder, unsynced: for libraries that hide why a write failed; None: the write succeeded."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(b"?")
        if (free := shutil.disk_usage(folder).free) < num_bytes:
            return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {num_bytes} bytes are needed, {free} are free")
    except OSError as error:
        return error
    return None


def _explained_errno(error: BaseException, folders: Sequence[str], is_own: bool) -> int | None:
    """Return the key in `_CAUSES` for an exception or one of its causes."""
    for cause in exception_chain(error):
        number = _cause_number(cause, folders, is_own)
        if number in _CAUSES:
            return number
    return None


def _cause_number(error: BaseException, folders: Sequence[str], is_own: bool) -> int | None:
    """Return the errno of one exception, by which of its causes it is; None: it does not concern the run."""
    number = _errno_of(error)
    match number:
        case errno.ENOENT | errno.ENOTDIR:
            is_gone = any(_is_below(error, folder) and not Path(folder).exists() for folder in folders)
            return errno.ENOENT if is_gone else None
        case errno.EACCES | errno.EPERM | errno.EBUSY:
            return number if any(_is_refused(error, folder) for folder in folders) else None
        case errno.EAGAIN:
            if any(_is_below(error, folder) for folder in folders):
                return LOCKED
            lacks_threads = "thread" in str(error) or (is_own and not _can_start_thread())
            return number if lacks_threads else None  # a socket without data raises it as well
        case errno.ENOSPC:
            places = [place for place in (_file_name(error), *folders) if place]
            return NO_INODES if any(map(_lacks_inodes, places)) else number
    return number


def _errno_of(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)
    if isinstance(number, int):
        return number
    text = str(error)
    if matched := _ERRNO_IN_TEXT.search(text):
        return int(next(group for group in matched.groups() if group))
    return next((number for phrase, number in _PHRASES.items() if phrase in text), None)


def _can_start_thread() -> bool:
    import threading

    try:
        threading.Thread(target=lambda: None).start()
    except RuntimeError:
        return False
    return True


def _file_name(error: BaseException) -> str | None:
    name = getattr(error, "filename", None)
    return name if isinstance(name, str) else None


def _is_below(error: BaseException, folder: str) -> bool:
    file = _file_name(error)
    return file is not None and Path(file).absolute().is_relative_to(Path(folder).absolute())


def _is_refused(error: BaseException, folder: str) -> bool:
    """Return whether an error is about a file below a folder, or names no file while the folder takes none."""
    return _is_below(error, folder) or (_file_name(error) is None and not _is_writable(folder))


def _lacks_inodes(place: str) -> bool:
    try:
        file_system = os.statvfs(existing_parent(Path(place)))
    except OSError:
        return False
    return file_system.f_files > 0 and file_system.f_favail == 0 and file_system.f_bavail > 0


def _failed_path(error: BaseException, folders: Sequence[str]) -> str:
    """Return the missing folder, the file of the error, the first folder that cannot be written, or all folders."""
    gone = [folder for folder in folders if _is_below(error, folder) and not os.path.exists(folder)]
    if gone or (file := _file_name(error)) is None:
        broken = gone or [folder for folder in folders if not _is_writable(folder)]
        return " or ".join(broken[:1] or folders) or "a folder that it writes to"
    return file


def _is_writable(folder: str) -> bool:
    """Return whether a write succeeds; statvfs may report a file system as writable after an I/O error."""
    return probe_write(existing_parent(Path(folder))) is None


def _free_space(folder: str) -> str:
    """Describe the free space on the disk of a folder, which may not exist yet. Example: "12.3 MB free"."""
    try:
        return f"{shutil.disk_usage(existing_parent(Path(folder))).free / 1e6:.1f} MB free"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def existing_parent(folder: Path) -> Path:
    """Return the folder, or the next one above it that exists."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder
