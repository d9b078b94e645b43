"""What runs that start together make for the same place in the cache."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.warm_start import _made_once


def made(run_dir: Path, folder: Path, during=lambda: None) -> None:
    """By the run of `run_dir`, whose name is its content; during: what happens elsewhere while it makes it."""

    def make(draft: Path) -> None:
        assert draft.parent == folder.parent and not draft.exists()
        draft.mkdir(parents=True)
        (draft / "content").write_text(run_dir.name)
        during()

    _made_once(SimpleNamespace(run_dir=run_dir), folder, make)


def test_the_first_of_two_runs_keeps_the_place(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "demos-1"
    made(tmp_path / "late", cache, during=lambda: made(tmp_path / "early", cache))
    assert (cache / "content").read_text() == "early"
    assert [entry.name for entry in cache.parent.iterdir()] == [cache.name], "drafts are left"


def test_what_cannot_be_moved_is_told(tmp_path: Path) -> None:
    (tmp_path / "demos-1").write_text("a file in the way")
    with pytest.raises(OSError, match="demos-1"):
        made(tmp_path / "run", tmp_path / "demos-1")
