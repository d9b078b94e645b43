"""Sizes and checksums of a folder: found damages, pieces, shares, and ignored files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from rlrun.data import checksums
from rlrun.data.checksums import CHECKSUMS, file_names, find_corruption, write

CONTENT = {"a": b"x" * 1000, "below/.hidden": b"y" * 10, "below/deep/empty": b""}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of several pieces of 256 bytes."""
    monkeypatch.setattr(checksums, "PIECE_BYTES", 256)
    for name, data in CONTENT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_what_is_written_is_sizes_and_sha256_of_pieces(folder: Path) -> None:
    digest = write(folder)
    text = (folder / CHECKSUMS).read_bytes()
    assert digest == hashlib.sha256(text).hexdigest()
    files = json.loads(text)["files"]
    assert {name: file["size"] for name, file in files.items()} == {name: len(data) for name, data in CONTENT.items()}
    assert files["a"]["sha256"] == [hashlib.sha256(b"x" * size).hexdigest() for size in (256, 256, 256, 232)]
    assert files["below/deep/empty"]["sha256"] == []
    assert find_corruption(folder) == [] and write(folder) == digest


@pytest.mark.parametrize("offset", [0, 255, 256, 999])
def test_a_bit_anywhere_is_found_by_exactly_the_share_that_reads_it(folder: Path, offset: int) -> None:
    write(folder)
    data = bytearray(CONTENT["a"])
    data[offset] ^= 1
    (folder / "a").write_bytes(data)
    told = ["a is damaged (its checksum differs)"]
    assert find_corruption(folder) == told
    assert [found for part in range(3) for found in find_corruption(folder, share=(part, 3))] == told
    assert find_corruption(folder, is_content_read=False) == []


def test_names_and_sizes(folder: Path) -> None:
    write(folder)
    (folder / "a").write_bytes(b"x" * 999)
    (folder / "below/.hidden").unlink()
    (folder / "more").write_bytes(b"")
    for left in (".nfs0001", "Thumbs.db", "below/desktop.ini", "._a", "DESKTOP.INI", "below/Icon\r"):
        (folder / left).write_bytes(b"of a system")
    for left in (".Trash-1000", "@eaDir", "lost+found", "__MACOSX", "System Volume Information"):
        (folder / left).mkdir()
        (folder / left / "a").write_bytes(b"of a system")
    (folder / "DONE").write_bytes(b"")
    told = ["a has 999 bytes instead of 1000", "below/.hidden is missing", "more was added"]
    assert find_corruption(folder, is_content_read=False, beside=("DONE",)) == told


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"piece_bytes": 1, "files": {}}', '{"piece_bytes": 256, "files": 3}']
)
def test_checksums_that_are_damaged_themselves(folder: Path, text: str) -> None:
    (folder / CHECKSUMS).write_text(text)
    (told,) = find_corruption(folder)
    assert told.startswith(f"{CHECKSUMS} is damaged")


def test_no_checksums(folder: Path) -> None:
    assert find_corruption(folder) == [f"{CHECKSUMS} is missing"]
    assert file_names(folder) == sorted(CONTENT)


def test_a_file_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder)

    def fails(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checksums, "_digest", fails)
    assert "a cannot be read ([Errno 5] Input/output error)" in find_corruption(folder)


def test_everything_is_brought_down_to_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(checksums, "flush", flushed.append)
    write(folder)
    assert set(flushed) == {folder, folder / "below", folder / "below/deep", folder / CHECKSUMS} | {
        folder / name for name in CONTENT
    }


def test_progress_is_called_for_each_piece(folder: Path) -> None:
    write(folder)
    told: list[None] = []
    find_corruption(folder, progress=lambda: told.append(None))
    assert len(told) == 4 + 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOMEM])
def test_a_read_that_is_refused_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    write(folder)

    def fails(*_: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(checksums, "_digest", fails)
    with pytest.raises(OSError, match=os.strerror(number)):
        find_corruption(folder)
