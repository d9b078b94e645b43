"""Messages of the evaluator's wire: msgpack maps in which arrays are maps of bytes, type and shape.

As openpi's clients and BEHAVIOR's evaluator write it: {b"__ndarray__": true, b"data", b"dtype", b"shape"}, and
{b"__npgeneric__": true, b"data", b"dtype"} for scalars. Nothing that is read can run code, and nothing is larger
than the bytes that came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

ARRAY, SCALAR = b"__ndarray__", b"__npgeneric__"
KINDS = "biuf"  # of the types that a message may hold: no objects, no records


class WireError(ValueError):
    """A message that is not of this wire, or not what its receiver asked for; the text tells the sender why."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Bytes of a message; values are arrays, numbers, texts, lists and maps."""
    return msgpack.packb(dict(message), default=_encode)


def unpack(data: bytes | str) -> dict[Any, Any]:
    """The message in `data`, arrays read-only and without a copy. Raises WireError."""
    if isinstance(data, str):
        raise WireError(f"expected a binary frame, got text: {data[:200]!r}")
    try:
        message = msgpack.unpackb(data, object_hook=_decode, strict_map_key=False)
    except WireError:
        raise
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise WireError(f"not a msgpack message: {type(error).__name__}: {error}") from error
    if not isinstance(message, dict):
        raise WireError(f"expected a map, got {type(message).__name__}")
    return message


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        _check_kind(value.dtype)
        return {ARRAY: True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        _check_kind(value.dtype)
        return {SCALAR: True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a message cannot hold {type(value).__name__}")


def _decode(entry: dict) -> Any:
    if ARRAY in entry:
        return _array(entry)
    if SCALAR in entry:
        try:
            return _dtype(entry).type(entry[b"data"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"not a scalar: {error}") from error
    return entry


def _array(entry: dict) -> np.ndarray:
    data, shape = entry.get(b"data"), entry.get(b"shape")
    if not isinstance(data, bytes) or not isinstance(shape, (list, tuple)):
        raise WireError("an array needs bytes and a shape")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise WireError(f"an array cannot have the shape {list(shape)[:8]}")
    dtype = _dtype(entry)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise WireError(f"an array of {list(shape)[:8]} {dtype} is not {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(shape)


def _dtype(entry: dict) -> np.dtype:
    try:
        dtype = np.dtype(entry.get(b"dtype"))
    except TypeError as error:
        raise WireError(f"not a number type: {error}") from error
    _check_kind(dtype)
    return dtype


def _check_kind(dtype: np.dtype) -> None:
    if dtype.kind not in KINDS:
        raise WireError(f"an array cannot hold {dtype}")
