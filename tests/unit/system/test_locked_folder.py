"""Folders of living processes are kept, and those of dead ones removed."""

from __future__ import annotations

import os
import subprocess
import sys

from rlrun.system.locked_folder import LockedFolder, holders, remove_stale

PREFIX = "rlrun-test-"
CRASH = f"""
import os, sys
from rlrun.system.locked_folder import LockedFolder
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
    assert len(dead) == 1
    assert holders([parent, parent], PREFIX) == [os.getpid()]
    assert set(remove_stale([parent, parent], PREFIX)) == dead
    assert set(tmp_path.iterdir()) == {living.path, foreign, unfinished, file}
    living.close()
    assert not living.path.exists() and holders([parent], PREFIX) == []
