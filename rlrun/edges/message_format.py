"""Encoding of messages as a msgpack header and raw buffers. Nothing is pickled, and only listed types are accepted.

The header is one msgpack value with two extensions:

    1  an array, [dtype, shape, data]; data is the bytes of a small array, or the transport's location of a large one
    2  an object, [name of its type, map of its fields]

The channel between env workers and policy servers sends large arrays as frames of their own
(rlrun/edges/connection.py), the pipe to a simulator puts them into shared memory (rlrun/pipe/wire.py).
Needs Python 3.10, numpy and msgpack.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from rlrun.system.errors import ExitStatus, RunError

INLINE_BYTES = 1 << 14  # arrays up to this size are copied into the header
KINDS = "biuf"  # booleans and numbers; no objects, no strings
# msgpack extensions
_ARRAY = 1
_OBJECT = 2
_MAX_DEPTH = 8  # objects within objects; msgpack itself bounds lists and maps
_ERROR_FIELDS = ("message", "key", "value", "cause", "remedy", "exit_status", "worker", "row", "kind")


class FormatError(ValueError):
    """The bytes are not a message of this format."""


class MessageFormat:
    """Encoder and decoder of plain values, arrays, RunError and the given dataclasses.

    Example::

        message_format = MessageFormat(Frames, Observation)
        buffers = []
        header = message_format.encode(observation, lambda array: buffers.append(array) or len(buffers) - 1)
        message_format.decode(header, lambda index, num_bytes: buffers[index])
    """

    def __init__(self, *kinds: type):
        """kinds: all dataclasses that a message may hold, at any depth."""
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._fields = {kind: _field_types(kind) for kind in kinds}

    def encode(self, message: Any, put: Callable[[np.ndarray], int]) -> bytes:
        """Return the header of a message. put: stores a large contiguous array and returns its location.

        Raises TypeError.
        """

        def extension(value: Any) -> Any:
            if isinstance(value, np.ndarray) and value.dtype.kind in KINDS:
                array = np.ascontiguousarray(value)
                data: bytes | int = array.tobytes() if array.nbytes <= INLINE_BYTES else put(array)
                return msgpack.ExtType(_ARRAY, msgpack.packb([array.dtype.str, value.shape, data]))
            if isinstance(value, np.generic):
                return value.item()
            if type(value) in self._fields:
                fields = {name: getattr(value, name) for name in self._fields[type(value)]}
            elif isinstance(value, RunError):
                fields = _error_fields(value)
            else:
                raise TypeError(f"{type(value).__name__} cannot be sent: {value!r}")
            name = "RunError" if isinstance(value, RunError) else type(value).__name__
            return msgpack.ExtType(_OBJECT, msgpack.packb([name, fields], default=extension))

        return msgpack.packb(message, default=extension)

    def decode(self, header: Any, get: Callable[[int, int], Any]) -> Any:
        """Return the message. Its arrays are writable if the buffers of `get` are.

        header: bytes-like. get: returns a buffer, given the location from `put` and the number of bytes. Raises
        FormatError.
        """

        depth = 0  # of the object that is being read

        def extension(code: int, data: bytes) -> Any:
            nonlocal depth
            if code == _ARRAY:
                name, shape, stored = msgpack.unpackb(data)
                return _array(name, shape, stored, get)
            if code != _OBJECT or depth == _MAX_DEPTH:
                raise FormatError(f"unknown extension {code}, or one within {depth} others")
            depth += 1
            value = self._object(*msgpack.unpackb(data, ext_hook=extension, strict_map_key=False))
            depth -= 1
            return value

        try:
            return msgpack.unpackb(header, ext_hook=extension, strict_map_key=False)
        except FormatError:
            raise
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
            raise FormatError(f"a message cannot be read: {type(error).__name__}: {error}") from error

    def _object(self, name: str, fields: dict[str, Any]) -> Any:
        if not isinstance(fields, dict):
            raise FormatError(f"the fields of {name!r:.80} are no map")
        if name == "RunError":
            return RunError(**fields | {"exit_status": ExitStatus(fields["exit_status"])})
        kind = self._kinds.get(name)
        if kind is None:
            raise FormatError(f"unknown type {name!r:.80}")
        for field, types_ in self._fields[kind].items():
            if isinstance(fields.get(field), list):
                fields[field] = tuple(fields[field])
            if not isinstance(fields.get(field), types_):
                raise FormatError(f"{name}.{field} cannot be {type(fields.get(field)).__name__}")
        return kind(**fields)


def _array(name: str, shape: list[int], data: bytes | int, get: Callable[[int, int], Any]) -> np.ndarray:
    dtype = np.dtype(name)
    if dtype.kind not in KINDS or any(size < 0 for size in shape):
        raise FormatError(f"an array of {name} {shape} cannot be sent")
    num_bytes = dtype.itemsize * math.prod(shape)
    if isinstance(data, bytes):
        return np.frombuffer(bytearray(data), dtype).reshape(shape)
    array = np.frombuffer(get(data, num_bytes), dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _error_fields(error: RunError) -> dict[str, Any]:
    fields = {name: getattr(error, name) for name in _ERROR_FIELDS}
    is_plain = isinstance(error.value, (str, int, float, bool, type(None)))
    return fields | {"value": error.value if is_plain else repr(error.value), "exit_status": int(error.exit_status)}


def _field_types(kind: type) -> dict[str, tuple[type, ...]]:
    """Return the classes that the value of each field may have."""
    hints = typing.get_type_hints(kind)
    return {field.name: tuple(_classes(hints[field.name])) for field in dataclasses.fields(kind)}


def _classes(hint: Any) -> typing.Iterator[type]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            yield from _classes(option)
    elif hint is float:
        yield from (float, int)
    else:
        yield origin or hint
