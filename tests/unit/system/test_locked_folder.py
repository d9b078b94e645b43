"""Folders of living processes are kept, and those of dead ones removed."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.system import local_files
from rlrun.system.local_files import (
    LockedFolder,
    TemporaryFolder,
    lock_holder,
    lock_holders,
    open_parent,
    remove_stale,
    stale_folders,
    unfit_folder,
)
from rlrun.system.user import home_folder, user_name

PREFIX = "rlrun-test-"
CRASH = f"""
import os, sys
from rlrun.system.local_files import LockedFolder
LockedFolder(sys.argv[1], {PREFIX!r})
os._exit(9)
"""


def test_only_folders_of_dead_processes_are_removed(tmp_path):
    parent = str(tmp_path)
    living = LockedFolder(parent, PREFIX)
    assert subprocess.run([sys.executable, "-c", CRASH, parent], check=False).returncode == 9
    foreign, unfinished, file = (tmp_path / name for name in ("ray", f"{PREFIX}new", f"{PREFIX}file"))
    file.touch()
    foreign.mkdir()
    unfinished.mkdir()
    dead = set(tmp_path.iterdir()) - {living.path, foreign, unfinished, file}
    assert len(dead) == 1 and set(stale_folders([parent], PREFIX)) == dead and lock_holder(*dead) != os.getpid()
    assert lock_holders([parent, parent], PREFIX) == [os.getpid()]
    assert set(remove_stale([parent, parent], PREFIX)) == dead
    assert set(tmp_path.iterdir()) == {living.path, foreign, unfinished, file}
    living.close()
    assert not living.path.exists() and lock_holders([parent], PREFIX) == []


def test_only_its_user_enters_a_folder_whatever_is_done_to_the_one_inside(tmp_path):
    folder = LockedFolder(str(tmp_path), PREFIX)
    folder.inner.chmod(0o777)  # as Ray does
    assert folder.path.stat().st_mode & 0o777 == 0o700 and folder.inner.parent == folder.path
    folder.close()


def test_a_folder_in_which_others_may_rename_it_is_found(tmp_path):
    deep = tmp_path / "shared" / "own" / "folder"
    deep.mkdir(parents=True)
    assert open_parent(deep) is None
    (tmp_path / "shared").chmod(0o777)
    assert open_parent(deep) == tmp_path / "shared"
    (tmp_path / "shared").chmod(0o1777)
    assert open_parent(deep) is None


@pytest.fixture
def places(monkeypatch, tmp_path) -> list[str]:
    """Three places that are tried in place of a folder that does not fit."""
    found = [tmp_path / name for name in "abc"]
    for place in found:
        place.mkdir()
    monkeypatch.setattr(local_files, "_PLACES", tuple(map(str, found)))
    return list(map(str, found))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_folder_without_file_locks_is_named_and_the_remedy_was_tried(monkeypatch, places, number):
    """The first two places have no locks, the third has."""

    def flock(file, operation):
        if not os.readlink(f"/proc/self/fd/{file}").startswith(places[2]):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError) as failed:
        LockedFolder(places[0], PREFIX)
    told = unfit_folder(TemporaryFolder(places[0], "TMPDIR"), failed.value, "cluster.temp_dir")
    assert "has no file locks" in str(told) and "which TMPDIR names" in str(told) and told.key == "TMPDIR"
    assert told.remedy == f"Set cluster.temp_dir={places[2]}, where that works."
    assert not any(any(Path(place).iterdir()) for place in places)  # nothing is left behind


@pytest.mark.parametrize(
    ("number", "why"),
    [(errno.EROFS, "is read-only"), (errno.EACCES, "may not write"), (errno.ENOENT, "does not exist")],
)
def test_what_is_wrong_with_a_folder_is_told(places, number, why):
    error = OSError(number, os.strerror(number))
    told = unfit_folder(TemporaryFolder(places[0], "cluster.temp_dir"), error, "cluster.temp_dir")
    assert why in str(told) and f"cluster.temp_dir={places[1]}" in str(told.remedy)
    assert ("make that folder" in str(told.remedy)) == (number == errno.ENOENT)


def test_no_place_that_works(monkeypatch, places):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    told = unfit_folder(TemporaryFolder(places[0], ""), OSError(errno.ENOLCK, "no locks"), "cluster.temp_dir")
    assert "local disk in cluster.temp_dir" in str(told.remedy)


def test_a_folder_whose_lock_cannot_be_tried_is_kept(monkeypatch, tmp_path):
    folder = LockedFolder(str(tmp_path), PREFIX)

    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert stale_folders([str(tmp_path)], PREFIX) == []
    folder.close()


def test_a_user_without_name_and_home(monkeypatch):
    """As `docker run --user 1234` has it: no entry in /etc/passwd, no variables."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    assert user_name() and home_folder()
    for variable in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert user_name() == f"user {os.getuid()}" and home_folder() is None
