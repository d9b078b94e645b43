"""The latest and best checkpoint, and deletion; incomplete folders are ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.data.checkpoint_folder import (
    COMPLETE,
    FORMAT,
    best,
    folder_of_step,
    latest,
    list_complete,
    mark_best,
    prune,
    require_format,
    set_later_aside,
    unmark_best,
)
from rlrun.system.errors import ExitStatus, RunError


def make(root: Path, step: int, is_complete: bool = True) -> Path:
    folder = folder_of_step(root, step)
    folder.mkdir(parents=True)
    (folder / "weights").write_text("x")
    if is_complete:
        (folder / COMPLETE).write_text("1\n")
    return folder


def test_latest_ignores_what_is_incomplete_foreign_or_absent(tmp_path: Path) -> None:
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None
    second = make(tmp_path, 200)
    make(tmp_path, 30)
    make(tmp_path, 1000, is_complete=False)
    (tmp_path / ".writing-step_00002000").mkdir()
    (tmp_path / ".writing-step_00002000" / COMPLETE).write_text("1\n")
    (tmp_path / "step_backup").mkdir()
    (tmp_path / "step_backup" / COMPLETE).write_text("1\n")
    assert latest(tmp_path) == second
    assert [folder.name for folder in list_complete(tmp_path)] == ["step_00000030", "step_00000200"]


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    make(tmp_path, 99_999_999)
    assert latest(tmp_path) == tmp_path / "step_99999999"
    assert latest(tmp_path) != make(tmp_path, 5)
    assert make(tmp_path, 100_000_000) == latest(tmp_path)


def test_a_checkpoint_that_is_replaced_is_no_longer_the_best(tmp_path: Path) -> None:
    first, second = make(tmp_path, 1), make(tmp_path, 2)
    unmark_best(first)
    mark_best(first)
    unmark_best(second)
    assert best(tmp_path) == first
    unmark_best(first)
    assert best(tmp_path) is None


def test_prune_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    folders = [make(tmp_path, step) for step in (1, 2, 3, 4)]
    mark_best(folders[0])
    leftover = tmp_path / ".writing-step_00000005"
    leftover.mkdir()
    assert prune(folders[3], keep_last=2, is_best_kept=True) == [folders[1]]
    assert best(tmp_path) == folders[0]
    assert list_complete(tmp_path) == [folders[0], *folders[2:]]
    assert not leftover.exists()
    assert prune(folders[3], keep_last=1, is_best_kept=False) == [folders[0], folders[2]]
    assert best(tmp_path) is None
    assert latest(tmp_path) == folders[3]


def test_prune_keeps_what_was_just_saved_although_a_damaged_one_has_a_higher_step(tmp_path: Path) -> None:
    older, saved, passed_over = (make(tmp_path, step) for step in (1, 2, 9))
    assert prune(saved, keep_last=1, is_best_kept=False) == [older]
    assert list_complete(tmp_path) == [saved, passed_over]


def test_a_run_that_returns_to_a_checkpoint_goes_on_from_there(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (20, 30, 40):
        make(root, step)
    mark_best(root / "step_00000040")
    moved = set_later_aside(root / "step_00000020", tmp_path / "left")
    assert moved == [tmp_path / "left" / name for name in ("step_00000030", "step_00000040")]
    assert list_complete(tmp_path / "left") == moved
    assert latest(root) == root / "step_00000020" and best(root) is None
    assert set_later_aside(root / "step_00000020", tmp_path / "again") == []
    assert not (tmp_path / "again").exists()
    make(root, 40)
    assert best(root) is None, "it is another checkpoint than the best one of this step"


def test_a_best_marker_with_a_wrong_name_is_ignored(tmp_path: Path) -> None:
    make(tmp_path, 1)
    for garbage in (b"", b"\xff\x00\x80", b"../elsewhere", b"step_00000002"):
        (tmp_path / "BEST").write_bytes(garbage)
        assert best(tmp_path) is None


def test_a_newer_format_is_never_pruned_or_overwritten(tmp_path: Path) -> None:
    folders = [make(tmp_path, step) for step in (10, 20, 30, 40)]
    (folders[0] / COMPLETE).write_text(f"{FORMAT + 1} x\n")
    assert prune(folders[3], keep_last=1, is_best_kept=False) == folders[1:3]
    with pytest.raises(RunError, match="was written by a newer version"):
        require_format(folders[0], is_newer_only=True)
    require_format(folders[3], is_newer_only=True)  # older, which this version may replace
    with pytest.raises(RunError, match="an older version") as raised:
        require_format(folders[3])
    assert "Copy" not in (raised.value.remedy or "") and raised.value.exit_status is ExitStatus.bad_input
    for text in ("", "x y", "\udc80"):
        (folders[0] / COMPLETE).write_bytes(text.encode(errors="surrogateescape"))
        require_format(folders[0])  # damaged: a search tells that
