"""Folders of living processes are kept, and those of dead ones removed."""

from __future__ import annotations

import os
import subprocess
import sys

from rlrun.system.local_files import LockedFolder, lock_holder, lock_holders, open_parent, remove_stale, stale_folders

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
