"""The mark by which a user knows the configurations that the user's own runs wrote.

A run begins each configuration that it records with a comment: an HMAC of the rest of the file, by a secret that only
this user can read. Nobody else who writes or changes such a file can make the mark, and a copy of the file keeps it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from enum import Enum
from pathlib import Path

_BEGIN = "# mark of the user whose run wrote this file: "
_OTHERS = 0o077  # permissions of group and others


class Author(Enum):
    """Who wrote a recorded configuration, as a sentence says it after the name of the file."""

    own = "was written by a run of yours"
    changed = "was changed, or cut short, after a run of yours wrote it"
    other = "was not written by a run of yours on this machine"


def key_file() -> Path:
    """Return the file of the secret. Raises RuntimeError if the user has no home folder."""
    return Path.home() / ".rlrun" / "mark_key"


def can_mark() -> bool:
    """Return whether this user has a secret, or can make one."""
    return _secret(is_made=True) is not None


def marked(text: str) -> str:
    """Return `text` with the mark before it; without, where the home folder cannot hold a secret."""
    secret = _secret(is_made=True)
    return text if secret is None else f"{_BEGIN}{_number(secret)} {_digest(secret, text)}\n{text}"


def author_of(text: str) -> Author:
    """Return who wrote the text of a recorded configuration."""
    first, _, rest = text.partition("\n")
    secret = _secret(is_made=False)
    if secret is None or not first.startswith(_BEGIN):
        return Author.other
    number, _, digest = first.removeprefix(_BEGIN).partition(" ")
    if hmac.compare_digest(digest.encode(), _digest(secret, rest).encode()):
        return Author.own
    return Author.changed if number == _number(secret) else Author.other


def _secret(is_made: bool) -> bytes | None:
    """Return the user's secret; None: there is none, it cannot be made, or others could have read it."""
    with suppress(OSError, RuntimeError, ValueError):
        file = key_file()
        if is_made and not file.exists():
            _make(file)
        with file.open() as stream:
            status = os.fstat(stream.fileno())
            secret = bytes.fromhex(stream.read().strip())
        if len(secret) == 32 and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS:
            return secret
    return None


def _make(file: Path) -> None:
    """Write a new secret at once: of several processes that do so, all use the first one's."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
            stream.write(secrets.token_hex(32))
        try:
            os.link(draft, file)
        except FileExistsError:
            return
        except OSError:  # a file system without links
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _digest(secret: bytes, text: str) -> str:
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def _number(secret: bytes) -> str:
    """Return what tells one user's marks from another's."""
    return hashlib.sha256(b"number" + secret).hexdigest()[:8]
