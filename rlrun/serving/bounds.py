"""Limits on the items, depth and text of a message, checked in its bytes before decoding.

A message of 64 MB may declare 64 million empty maps, which take gigabytes in Python. Therefore the headers of its items
are read first: this takes no memory, and stops after MAX_ITEMS, within some milliseconds.
"""

from __future__ import annotations

MAX_DEPTH = 8  # nested containers; an observation needs 3
MAX_ITEMS = 10_000  # keys, values and containers of a message; an observation has about a hundred
MAX_TEXT_BYTES = 1_000_000  # of all texts together, including keys; Python may need 4 bytes for each

_FIXED = (  # first byte -> number of following bytes
    {0xC0: 0, 0xC2: 0, 0xC3: 0}  # nil, false, true
    | {0xCA: 4, 0xCB: 8}  # floats
    | {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}  # integers
    | {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # extensions of a fixed size, with their type
)
_LONG = (  # first byte -> (width of the following length, kind of item)
    {0xC4: (1, "bytes"), 0xC5: (2, "bytes"), 0xC6: (4, "bytes")}
    | {0xC7: (1, "extension"), 0xC8: (2, "extension"), 0xC9: (4, "extension")}
    | {0xD9: (1, "text"), 0xDA: (2, "text"), 0xDB: (4, "text")}
    | {0xDC: (2, "array"), 0xDD: (4, "array"), 0xDE: (2, "map"), 0xDF: (4, "map")}
)


def excess(data: bytes) -> str | None:
    """Return which limit a msgpack message exceeds; None if it is within limits, or is not msgpack.

    Example: excess(b"\\x91" * 9) -> "more than 8 nested containers".
    """
    position = num_items = num_text_bytes = 0
    to_come = [1]  # remaining items of each open container, the outermost first
    while to_come and position < len(data):
        if to_come[-1] == 0:
            to_come.pop()
            continue
        to_come[-1] -= 1
        num_items += 1
        kind, size, start = _head(data, position)
        position = start
        if kind in ("array", "map"):
            to_come.append(size * (2 if kind == "map" else 1))
        else:
            position += size
            num_text_bytes += size if kind == "text" else 0
        if num_items > MAX_ITEMS:
            return f"more than {MAX_ITEMS} items"
        if len(to_come) > MAX_DEPTH + 1:
            return f"more than {MAX_DEPTH} nested containers"
        if num_text_bytes > MAX_TEXT_BYTES:
            return f"more than {MAX_TEXT_BYTES} bytes of text"
    return None


def _head(data: bytes, position: int) -> tuple[str, int, int]:
    """Return the kind of an item, its size (in bytes, items or pairs), and the position of its content."""
    first, start = data[position], position + 1
    if first in _LONG:
        width, kind = _LONG[first]
        size = int.from_bytes(data[start : start + width], "big") + (kind == "extension")
        return kind, size, start + width
    if 0x80 <= first <= 0x8F:
        return "map", first & 0x0F, start
    if 0x90 <= first <= 0x9F:
        return "array", first & 0x0F, start
    if 0xA0 <= first <= 0xBF:
        return "text", first & 0x1F, start
    return "number", _FIXED.get(first, 0), start
