"""Messages as bytes: pickled, the arrays in them as plain bytes, for which numpy's own way takes twice as long."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

_BESIDE_BYTES = 1 << 14  # larger arrays are not copied into the message
_PLAIN = "biufc"  # kinds of numbers that one letter names


def packed(message: Any) -> tuple[memoryview, list[memoryview]]:
    """The message, and the memory of its large arrays, which `unpacked` needs beside it."""
    arrays: list[memoryview] = []
    body = io.BytesIO()
    _Pickler(body, 5, buffer_callback=lambda buffer: arrays.append(buffer.raw())).dump(message)
    return body.getbuffer(), arrays


def unpacked(body: Any, arrays: Sequence[Any]) -> Any:
    """The message again; its arrays may be written to, if `arrays` may."""
    return pickle.loads(body, buffers=arrays)


def _reduced(array: np.ndarray) -> tuple:
    if array.nbytes < _BESIDE_BYTES and array.dtype.kind in _PLAIN and array.dtype.isnative:
        data = bytearray(array.data)  # an array that is one number would itself be taken for a length
        return np.ndarray, (array.shape, array.dtype.char, data)
    return array.__reduce_ex__(5)


class _Pickler(pickle.Pickler):
    dispatch_table = {**copyreg.dispatch_table, np.ndarray: _reduced}
