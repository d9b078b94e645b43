"""Folders of a node: enough free space, and short paths."""

from __future__ import annotations

from collections import namedtuple

import pytest

from rlrun.cluster import node_settings as settings
from rlrun.cluster.node_settings import choose_folder, free_space
from rlrun.system.errors import RunError

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def disks(monkeypatch):
    """Disks of 1,000 bytes; the dictionary holds the bytes used."""
    used: dict[str, int] = {}
    monkeypatch.setattr(settings.shutil, "disk_usage", lambda path: Usage(1000, used[path], 1000 - used[path]))
    return used


def test_free_space_ends_at_rays_threshold(tmp_path, disks):
    disks[str(tmp_path)] = 900
    assert free_space(str(tmp_path)).usable_bytes == 50
    disks[str(tmp_path)] = 980
    assert free_space(str(tmp_path)).usable_bytes == -30


def test_the_folder_with_most_space_is_chosen(tmp_path, disks):
    full, small, large = (str(tmp_path / name) for name in ("full", "small", "large"))
    disks |= {full: 980, small: 600, large: 200}
    assert choose_folder([full, small, large], 100, "key", is_for_sockets=False) == large
    disks[large] = 940
    assert choose_folder([full, small, large], 100, "key", is_for_sockets=False) == small


def test_folders_that_do_not_fit_are_named(tmp_path, disks):
    disks[str(tmp_path)] = 960
    with pytest.raises(RunError) as refusal:
        choose_folder([str(tmp_path), "/proc/no"], 5_000_000, "placement.nodes.sim.spill_dirs", is_for_sockets=False)
    assert f"{tmp_path}: 0 MB until the disk is 95 % full, 5 MB needed" in refusal.value.cause
    assert "/proc/no: No such file" in refusal.value.cause
    assert refusal.value.key == "placement.nodes.sim.spill_dirs"


def test_sockets_need_short_paths(tmp_path, disks):
    deep = str(tmp_path / ("d" * 60))
    disks[deep] = 0
    with pytest.raises(RunError) as refusal:
        choose_folder([deep], 100, "key", is_for_sockets=True)
    assert "bytes too long" in refusal.value.cause
    assert choose_folder([deep], 100, "key", is_for_sockets=False) == deep
