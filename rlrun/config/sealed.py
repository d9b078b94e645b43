"""Sealed JSON: a file of results with its digest and the mark of its user, so that a reader can tell edits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.config import provenance
from rlrun.config.provenance import Author

SEAL = "seal"  # the key beside the content


def write_sealed(content: Mapping[str, Any], file: Path) -> None:
    """Write results with their digest and the mark of this user."""
    text = canonical(content)
    first, _, rest = provenance.marked(text).partition("\n")
    seal = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "mark": first if rest else ""}
    file.write_text(json.dumps({**content, SEAL: seal}, indent=1) + "\n", encoding="utf-8")


def fault_of_seal(sealed: Mapping[str, Any]) -> str | None:
    """Return the proof that digest or mark are not those of the content; None: they are."""
    text = _content_of(sealed)
    seal = sealed[SEAL]
    if hashlib.sha256(text.encode()).hexdigest() != seal.get("sha256"):
        return "its SHA-256 is not that of its content: it was edited"
    if seal.get("mark") and provenance.author_of(f"{seal['mark']}\n{text}") is Author.changed:
        return "its mark is this user's, and does not belong to its content: it was edited"
    return None


def author_of(sealed: Mapping[str, Any]) -> Author:
    """Return the author of sealed results, by their mark."""
    return provenance.author_of(f"{sealed[SEAL].get('mark')}\n{_content_of(sealed)}")


def canonical(content: Mapping[str, Any]) -> str:
    """Return the text that is digested. Raises ValueError for numbers that JSON has not."""
    return json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _content_of(sealed: Mapping[str, Any]) -> str:
    return canonical({key: value for key, value in sealed.items() if key != SEAL})
