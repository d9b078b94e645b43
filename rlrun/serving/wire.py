"""Encoding of served messages: msgpack maps, with arrays as maps of bytes, type and shape.

The encoding of openpi's clients and BEHAVIOR's evaluator: {b"__ndarray__": true, b"data", b"dtype", b"shape"}, and
{b"__npgeneric__": true, b"data", b"dtype"} for scalars. Decoding cannot run code. Before a message is decoded,
`exceeded_limit` counts its items, depth and texts, so that it takes little more memory than its bytes: a message of a
few bytes could otherwise announce billions of items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np

MAX_DEPTH = 8  # nested containers; an observation needs 3
MAX_ITEMS = 10_000  # keys, values and containers of a message; an observation has about a hundred
MAX_TEXT_BYTES = 1_000_000  # of all texts together, including keys; Python may need 4 bytes for each

_FIXED_SIZES = (  # first byte -> number of following bytes
    {0xC0: 0, 0xC2: 0, 0xC3: 0}  # nil, false, true
    | {0xCA: 4, 0xCB: 8}  # floats
    | {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}  # integers
    | {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # extensions of a fixed size, with their type
)
_SIZED_ITEMS = (  # first byte -> (width of the following length, kind of item)
    {0xC4: (1, "bytes"), 0xC5: (2, "bytes"), 0xC6: (4, "bytes")}
    | {0xC7: (1, "extension"), 0xC8: (2, "extension"), 0xC9: (4, "extension")}
    | {0xD9: (1, "text"), 0xDA: (2, "text"), 0xDB: (4, "text")}
    | {0xDC: (2, "array"), 0xDD: (4, "array"), 0xDE: (2, "map"), 0xDF: (4, "map")}
)
ARRAY = b"__ndarray__"
SCALAR = b"__npgeneric__"
MAX_DIMENSIONS = 8
DTYPE_NAMES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_NATIVE_DTYPES = {name: np.dtype(name) for name in DTYPE_NAMES}
DTYPES = _NATIVE_DTYPES | {  # accepted names of types: "float32", "<f4", ">f4"; numpy's parser gets no other text
    dtype.str: dtype
    for plain in _NATIVE_DTYPES.values()
    for dtype in (plain.newbyteorder("<"), plain.newbyteorder(">"))
}


def exceeded_limit(data: bytes) -> str | None:
    """Return the limit that a msgpack message exceeds; None if it is within limits, or is not msgpack.

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
        kind, size, start = _item_header(data, position)
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


def _item_header(data: bytes, position: int) -> tuple[str, int, int]:
    """Return the kind of an item, its size (in bytes, items or pairs), and the position of its content."""
    first = data[position]
    start = position + 1
    if first in _SIZED_ITEMS:
        width, kind = _SIZED_ITEMS[first]
        size = int.from_bytes(data[start : start + width], "big") + (kind == "extension")
        return kind, size, start + width
    if 0x80 <= first <= 0x8F:
        return "map", first & 0x0F, start
    if 0x90 <= first <= 0x9F:
        return "array", first & 0x0F, start
    if 0xA0 <= first <= 0xBF:
        return "text", first & 0x1F, start
    return "number", _FIXED_SIZES.get(first, 0), start


class WireError(ValueError):
    """A message violates the protocol or the receiver's expectations; the text is for its sender."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Encode a message of arrays, numbers, texts, lists and maps."""
    return msgpack.packb(dict(message), default=_encode)


def unpack(data: bytes | str) -> dict[Any, Any]:
    """Decode a message; arrays are read-only views of `data`. Raises WireError."""
    return unpack_map(data, _decode)


def unpack_map(data: bytes | str, decode: Callable[[dict[Any, Any]], Any]) -> dict[Any, Any]:
    """Decode a msgpack map within the limits of this module. Raises WireError.

    decode: called with each map, the innermost first; returns what stands in its place.
    """
    if isinstance(data, str):
        raise WireError(f"expected a binary frame, got text: {data[:200]!r}")
    too_much = exceeded_limit(data)
    if too_much is not None:
        raise WireError(f"a message may not hold {too_much}")
    try:
        message = msgpack.unpackb(data, object_hook=decode, strict_map_key=False)
    except WireError:
        raise
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise WireError(f"not a msgpack message: {type(error).__name__}: {error}") from error
    if not isinstance(message, dict):
        raise WireError(f"expected a map, got {type(message).__name__}")
    return message


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {ARRAY: True, b"data": value.tobytes(), b"dtype": _dtype_name(value.dtype), b"shape": value.shape}
    if isinstance(value, np.generic):
        return {SCALAR: True, b"data": value.item(), b"dtype": _dtype_name(value.dtype)}
    raise TypeError(f"a message cannot hold {type(value).__name__}")


def _dtype_name(dtype: np.dtype) -> str:
    if dtype.str not in DTYPES:
        raise WireError(f"an array cannot hold {dtype}")
    return dtype.str


def _decode(entry: dict) -> Any:
    if ARRAY in entry:
        return array_of(entry.get(b"data"), entry.get(b"dtype"), entry.get(b"shape"))
    if SCALAR in entry:
        return _scalar(entry)
    return entry


def _scalar(entry: dict) -> np.generic:
    value = entry.get(b"data")
    if not isinstance(value, (bool, int, float)):
        raise WireError(f"not a scalar: its data is {type(value).__name__}")
    try:
        return _dtype(entry.get(b"dtype")).type(value)
    except (ValueError, OverflowError) as error:
        raise WireError(f"not a scalar: {error}") from error


def array_of(data: Any, dtype_name: Any, shape: Any) -> np.ndarray:
    """Return the array of received bytes, type and shape, a read-only view of `data`. Raises WireError."""
    if not isinstance(data, bytes) or not isinstance(shape, (list, tuple)):
        raise WireError("an array needs bytes and a shape")
    sizes = list(shape[:MAX_DIMENSIONS])
    if len(shape) > MAX_DIMENSIONS or not all(_is_size(size) for size in sizes):
        raise WireError(f"an array cannot have the shape {sizes}")
    dtype = _dtype(dtype_name)
    if math.prod(sizes) * dtype.itemsize != len(data):
        raise WireError(f"an array of {sizes} {dtype} is not {len(data)} bytes")
    try:
        return np.frombuffer(data, dtype).reshape(sizes)
    except (ValueError, OverflowError) as error:  # a side is 0 and another is larger than any array may be
        raise WireError(f"an array cannot have the shape {sizes}") from error


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 1 << 63


def _dtype(name: Any) -> np.dtype:
    if not isinstance(name, str) or name not in DTYPES:
        given = f"{name[:40]!r}" if isinstance(name, str) else type(name).__name__
        raise WireError(f"unknown number type {given}; use {', '.join(DTYPE_NAMES)}, as numpy writes them")
    return DTYPES[name]
