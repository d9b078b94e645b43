"""What the operating system refuses has a sentence of its own: only a full disk is a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.system import storage_error
from rlrun.system.errors import ExitStatus
from rlrun.system.storage_error import is_storage_error, is_unreadable, probe_write, storage_failure

DISKS = {
    errno.ENOSPC: "The run could not write: a disk is full.",
    errno.EDQUOT: "The run could not write: the quota of this user on the disk of /runs/a is used up.",
    errno.EROFS: "The run could not write: the file system of /runs/a is read-only.",
    errno.EIO: "The run could not write: the disk of /runs/a reports an error.",
    errno.ESTALE: "The run could not write: the file server no longer knows /runs/a.",
    errno.ENODEV: "The run could not write: the disk of /runs/a is gone.",
    errno.EFBIG: "The run could not write: a limit forbids files of this size (ulimit -f).",
}
SCARCE = {
    errno.EMFILE: "actor/1.save failed: its process has no file descriptor left.",
    errno.ENFILE: "actor/1.save failed: the machine has no file descriptor left, in all processes together.",
    errno.ENOMEM: "actor/1.save failed: the system gives its process no more memory.",
}


@pytest.mark.parametrize("number", DISKS, ids=errno.errorcode.get)
def test_each_disk_is_one_sentence_and_status_6(number: int) -> None:
    error = OSError(number, os.strerror(number), "/runs/a")
    assert is_storage_error(error) and not is_unreadable(error)
    told = storage_failure(error, "The run", worker="actor/1")
    assert told is not None and told.message == DISKS[number]
    assert told.exit_status is ExitStatus.storage and told.worker is None, "another process would fail as well"
    assert ("Free space" in (told.remedy or "")) == (number in (errno.ENOSPC, errno.EDQUOT))


@pytest.mark.parametrize("number", SCARCE, ids=errno.errorcode.get)
def test_what_a_process_runs_short_of_is_no_disk(number: int) -> None:
    error = OSError(number, os.strerror(number))
    assert not is_storage_error(error) and is_unreadable(error)
    told = storage_failure(error, "actor/1.save", ["/runs/a"], worker="actor/1")
    assert told is not None and told.message == SCARCE[number]
    assert (told.worker, told.exit_status) == ("actor/1", ExitStatus.worker_lost), "a new process may do better"
    assert "Free space" not in str(told) and "MB free" not in str(told)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EPERM, "no"), FileNotFoundError(errno.ENOENT, "no"), BlockingIOError(errno.EAGAIN, "no data")],
)
def test_what_may_come_from_anywhere_is_not_told_as_a_refusal(error: OSError, tmp_path: Path) -> None:
    assert not is_storage_error(error)
    assert storage_failure(error, "env/0.collect", [str(tmp_path)], is_own=False) is None
    assert storage_failure(error, "The run", [str(tmp_path)]) is None
    assert not is_storage_error(ValueError()) and storage_failure(KeyError("cup"), "env/0.collect") is None


class LibraryError(Exception):
    """As libraries of other languages raise it: the number is only in the words."""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("I/O error: No space left on device (os error 28)", "a disk is full"),
        ("I/O error: Too many open files (os error 24)", "no file descriptor"),
        ("unable to open shared memory object: Too many open files", "no file descriptor"),
        ("[Errno 122] Disk quota exceeded", "quota"),
        ("can't start new thread", "no further thread"),
    ],
)
def test_libraries_that_only_mention_it_are_understood(text: str, says: str) -> None:
    for error in (LibraryError(text), _hidden_by(RuntimeError("failed writing file"), LibraryError(text))):
        told = storage_failure(error, "The checkpoint")
        assert told is not None and says in told.message


def _hidden_by(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


def test_a_folder_that_is_gone_or_closed_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number in (errno.ENOENT, errno.ENOTDIR):
        told = storage_failure(OSError(number, "x", str(run / "episodes.jsonl")), "The run", [str(run)])
        assert told is not None and told.message == f"The run failed: {run} is gone: it was deleted or renamed."
    run.mkdir()
    assert storage_failure(OSError(errno.ENOENT, "x", str(run / "a")), "The run", [str(run)]) is None, (
        "only a file is missing"
    )
    told = storage_failure(OSError(errno.EACCES, "x", str(run / "a")), "The run", [str(run)])
    assert told is not None and f"this user may not use {run}/a" in told.message
    assert storage_failure(OSError(errno.EACCES, "x", "/dev/dri/card0"), "env/0", [str(run)]) is None


REFUSED = {
    errno.EACCES: ("failed: this user may not use", "ls -ld"),
    errno.EPERM: ("failed: this user may not use", "lsattr"),
    errno.EBUSY: ("failed: {place} is in use, or something is mounted there.", "fuser"),
    errno.EAGAIN: ("failed: another process has locked {place}.", "fuser"),
    errno.ENOLCK: ("could not write: the file system of {place} gives no file lock.", "rpc.statd"),
}


@pytest.mark.parametrize("number", REFUSED, ids=errno.errorcode.get)
def test_what_is_refused_in_a_folder_of_the_run_has_a_sentence(number: int, tmp_path: Path) -> None:
    place, (says, remedy) = str(tmp_path / "file"), REFUSED[number]
    told = storage_failure(OSError(number, os.strerror(number), place), "The run", [str(tmp_path)])
    assert told is not None and says.format(place=place) in told.message and told.exit_status is ExitStatus.storage
    assert remedy in str(told.remedy) and os.strerror(number) in str(told.cause)
    elsewhere = storage_failure(OSError(number, os.strerror(number), "/elsewhere"), "The run", [str(tmp_path)])
    assert (elsewhere is None) == (number != errno.ENOLCK), "only file locks can be meant by it"


def test_a_refusal_without_a_file_needs_a_folder_that_takes_none(monkeypatch, tmp_path: Path) -> None:
    error = LibraryError("Permission denied (os error 13)")
    assert storage_failure(error, "The run", [str(tmp_path)]) is None
    monkeypatch.setattr(storage_error, "_is_writable", lambda folder: False)
    told = storage_failure(error, "The run", [str(tmp_path)])
    assert told is not None and f"this user may not use {tmp_path}" in told.message


def test_a_disk_without_inodes_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    values = list(found)
    values[5], values[6], values[7] = 1000, 0, 0  # f_files, f_ffree, f_favail
    monkeypatch.setattr(storage_error.os, "statvfs", lambda path: os.statvfs_result(values))
    told = storage_failure(
        OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "a")), "The run", [str(tmp_path)]
    )
    assert told is not None and "has no inode left" in told.message and "Delete small files" in (told.remedy or "")


def test_a_thread_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_error, "_can_start_thread", lambda: False)
    told = storage_failure(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "The run")
    assert told is not None and "no further thread or process" in told.message


def test_real_limits_are_told_as_what_they_are() -> None:
    """With the kernel's own refusals, in a process that has these limits."""
    program = (
        "import os, resource\n"
        "from rlrun.system.storage_error import storage_failure\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError as error: failure = error\n"
        "told = storage_failure(failure, 'The run', [os.getcwd()])\n"
        "for one in held: os.close(one)\n"
        "print(told.message)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "The run failed: its process has no file descriptor left.\n"


def test_an_error_without_a_file_names_the_folder_that_cannot_be_written(tmp_path: Path) -> None:
    broken = "/proc/self/fdinfo"  # exists, but cannot hold files
    told = storage_failure(OSError(errno.EROFS, "Read-only file system"), "env/0.act", [str(tmp_path / "new"), broken])
    assert told is not None
    assert told.message == f"env/0.act could not write: the file system of {broken} is read-only."
    assert f"{tmp_path}/new: " in (told.cause or "") and "MB free" in (told.cause or "")


def test_a_trial_tells_why_a_folder_takes_no_file(tmp_path: Path) -> None:
    assert probe_write(tmp_path, 1) is None
    assert getattr(probe_write(tmp_path, 1 << 60), "errno", None) == errno.ENOSPC
    assert getattr(probe_write(tmp_path / "none", 1), "errno", None) == errno.ENOENT
