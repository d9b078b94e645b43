"""The error of a disk that cannot be written, for all writers."""

from __future__ import annotations

import errno
import os

import pytest

from rlrun.system.exit_status import ExitStatus
from rlrun.system.storage_error import is_storage_error, storage_error

SENTENCES = {
    errno.ENOSPC: "The run could not write: a disk is full.",
    errno.EDQUOT: "The run could not write: a disk is full.",
    errno.EROFS: "The run could not write: the file system of /runs/a is read-only.",
    errno.EIO: "The run could not write: the disk of /runs/a reports an error.",
    errno.ESTALE: "The run could not write: the file server no longer knows /runs/a.",
    errno.ENODEV: "The run could not write: the disk of /runs/a is gone.",
}


@pytest.mark.parametrize("number", SENTENCES, ids=errno.errorcode.get)
def test_each_is_one_sentence_and_status_6(number: int) -> None:
    error = OSError(number, os.strerror(number), "/runs/a")
    assert is_storage_error(error)
    told = storage_error(error, "The run")
    assert told.message == SENTENCES[number] and told.exit_status is ExitStatus.storage
    assert ("Free space" in told.remedy) == (number in (errno.ENOSPC, errno.EDQUOT))


@pytest.mark.parametrize(
    "error", [OSError(errno.EPERM, "no"), FileNotFoundError(errno.ENOENT, "no"), ValueError(), None]
)
def test_other_errors_are_no_storage_errors(error: BaseException | None) -> None:
    assert not is_storage_error(error)


def test_an_error_without_a_file_names_the_folder_that_cannot_be_written(tmp_path) -> None:
    broken = "/proc/self/fdinfo"  # exists, but cannot hold files
    told = storage_error(OSError(errno.EROFS, "Read-only file system"), "env/0.act", [str(tmp_path / "new"), broken])
    assert told.message == f"env/0.act could not write: the file system of {broken} is read-only."
    assert f"{tmp_path}/new: " in told.cause and "MB free" in told.cause
