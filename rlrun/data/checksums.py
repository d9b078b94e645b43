"""Checksums of a folder's files, written when the folder is complete and verified before it is used.

`checksums.json` holds the size of every file and the SHA-256 of each 64 MiB of it, so that several threads and
processes can share the work on one large file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rlrun.system.local_files import read_json
from rlrun.system.storage_error import is_unreadable

T = TypeVar("T")
R = TypeVar("R")

CHECKSUMS = "checksums.json"
PIECE_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**17  # bytes read at a time; small, since the process keeps memory that threads free
_SYSTEM_FILES = (  # created by operating systems and file servers; hidden files are ignored as well
    *("thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "icon\r", "__macosx"),
    *("$recycle.bin", "system volume information", "recycler", "lost+found", "@eadir", "#recycle", "#snapshot"),
)
_NUM_THREADS = 4  # hashing releases the GIL


@dataclass(frozen=True)
class FileSum:
    """Size in bytes and the SHA-256 of each piece, in hexadecimal. An empty file has no pieces."""

    size: int
    pieces: tuple[str, ...]


Sums = Mapping[str, FileSum]  # by path relative to the folder, with "/" as separator


@dataclass(frozen=True)
class _Piece:
    name: str
    offset: int
    num_bytes: int
    digest: str = ""


def file_names(folder: Path) -> list[str]:
    """Return all files below the folder, sorted, without its checksum file."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(name for file in files if (name := file.relative_to(folder).as_posix()) != CHECKSUMS)


def compute(folder: Path, names: Iterable[str], progress: Callable[[], None] = lambda: None) -> dict[str, FileSum]:
    """Flush files to the disk and compute their checksums. progress: called after each piece, from any thread.

    Raises OSError if a file cannot be read.
    """
    sizes = {name: (folder / name).stat().st_size for name in names}
    _map_in_threads(sizes, lambda name: flush(folder / name))  # in parallel, since a disk can combine flushes
    pieces = [piece for name, size in sizes.items() for piece in _pieces(name, size)]

    def digest(piece: _Piece) -> str:
        piece_digest = _digest(folder, piece)
        progress()
        return piece_digest

    digests = _map_in_threads(pieces, digest)
    return {
        name: FileSum(
            size, tuple(piece_digest for piece, piece_digest in zip(pieces, digests, strict=True) if piece.name == name)
        )
        for name, size in sizes.items()
    }


def write(folder: Path, sums: Sums | None = None, progress: Callable[[], None] = lambda: None) -> str:
    """Write `checksums.json` and flush it to the disk. Returns its SHA-256.

    sums: checksums of all files; None: compute them, with `progress` as in `compute`. Raises OSError.
    """
    sums = compute(folder, file_names(folder), progress) if sums is None else sums
    entries = {name: {"size": sums[name].size, "sha256": list(sums[name].pieces)} for name in sorted(sums)}
    text = json.dumps({"piece_bytes": PIECE_BYTES, "files": entries}, indent=1) + "\n"
    (folder / CHECKSUMS).write_text(text, encoding="utf-8")
    flush(folder / CHECKSUMS)
    _map_in_threads([folder, *(below for below in folder.rglob("*") if below.is_dir())], flush)
    return sha256_hex(text.encode())


def read(folder: Path) -> dict[str, FileSum]:
    """Read the checksums of `write`. Raises OSError if the file is missing, ValueError if it is corrupted."""
    content = read_json(folder / CHECKSUMS)
    try:
        if content["piece_bytes"] != PIECE_BYTES:
            raise ValueError(f"pieces of {content['piece_bytes']} bytes")
        return {name: FileSum(int(file["size"]), tuple(file["sha256"])) for name, file in content["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks {error}") from error


def find_corruption(
    folder: Path,
    is_content_read: bool = True,
    share: tuple[int, int] = (0, 1),
    progress: Callable[[], None] = lambda: None,
    beside: Collection[str] = (),
) -> list[str]:
    """Return a text on each missing, added or corrupted file of a folder; [] if it is as it was written.

    is_content_read: False: compare only names and sizes. share: (1, 4) reads the second quarter of the content, so that
    four processes read all of it together. beside: names of files that were written later. Raises OSError if the system
    refuses to read, for example for lack of descriptors or permissions.
    Example: ["shards/__0_0.distcp is damaged (its checksum differs)"].
    """
    try:
        sums = read(folder)
    except FileNotFoundError:
        return [f"{CHECKSUMS} is missing"]
    except (OSError, ValueError) as error:
        return [f"{CHECKSUMS} is damaged ({as_corruption(error)})"]
    try:
        damages = [damage for name, file in sums.items() if (damage := _size_fault(folder, name, file))]
        added = [name for name in file_names(folder) if name not in sums and name not in beside]
        damages += [f"{name} was added" for name in added if not _is_system_file(name)]
    except OSError as error:
        return [f"it cannot be read ({as_corruption(error)})"]
    if damages or not is_content_read:
        return damages
    part, num_parts = share
    pieces = [piece for name, file in sums.items() for piece in _pieces(name, file.size, file.pieces)]

    def difference(piece: _Piece) -> str | None:
        damage = _content_fault(folder, piece)
        progress()
        return damage

    return list(dict.fromkeys(damage for damage in _map_in_threads(pieces[part::num_parts], difference) if damage))


def as_corruption(error: Exception) -> Exception:
    """Return an error that shows corruption. Raises one that says nothing about the file, as a lack of descriptors."""
    if isinstance(error, OSError) and is_unreadable(error):
        raise error
    return error


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk, so that they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(draft: Path, folder: Path) -> None:
    """Rename a folder and flush the change to the disk. Raises OSError, for example if `folder` is not empty."""
    os.rename(draft, folder)
    flush(folder.parent)


def _is_system_file(name: str) -> bool:
    """Return whether a file belongs to a file system or file browser. Example: .nfs0000012."""
    return any(part.startswith(".") or part.lower() in _SYSTEM_FILES for part in name.split("/"))


def _size_fault(folder: Path, name: str, file: FileSum) -> str | None:
    try:
        size = (folder / name).stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    return None if size == file.size else f"{name} has {size} bytes instead of {file.size}"


def _pieces(name: str, size: int, digests: tuple[str, ...] = ()) -> list[_Piece]:
    offsets = range(0, size, PIECE_BYTES)
    known = [*digests, *[""] * (len(offsets) - len(digests))]
    return [
        _Piece(name, offset, min(PIECE_BYTES, size - offset), digest)
        for offset, digest in zip(offsets, known, strict=False)
    ]


def _content_fault(folder: Path, piece: _Piece) -> str | None:
    try:
        is_same = _digest(folder, piece) == piece.digest
    except OSError as error:
        return f"{piece.name} cannot be read ({as_corruption(error)})"
    return None if is_same else f"{piece.name} is damaged (its checksum differs)"


def _digest(folder: Path, piece: _Piece) -> str:
    sha = hashlib.sha256()
    block = memoryview(bytearray(min(_BLOCK_BYTES, piece.num_bytes)))
    left = piece.num_bytes
    with open(folder / piece.name, "rb", buffering=0) as file:
        file.seek(piece.offset)
        while left:
            num_bytes = file.readinto(block[: min(len(block), left)])
            if not num_bytes:
                raise OSError(f"it ends {left} bytes too early")
            sha.update(block[:num_bytes])
            left -= num_bytes
    return sha.hexdigest()


def _map_in_threads(items: Collection[T], do: Callable[[T], R]) -> list[R]:
    if len(items) <= 1:
        return [do(item) for item in items]
    with ThreadPoolExecutor(min(_NUM_THREADS, len(items)), thread_name_prefix="checksums") as threads:
        return list(threads.map(do, items))
