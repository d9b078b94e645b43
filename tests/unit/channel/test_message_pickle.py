"""Whatever arrays a message holds arrive as they were."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.channel.message_pickle import packed, unpacked

GRID = np.arange(24, dtype=np.float32).reshape(4, 6)
ARRAYS = {
    "small": GRID,
    "large": np.arange(1 << 14, dtype=np.uint16).reshape(2, -1),
    "empty": np.zeros((3, 0, 2), np.uint8),
    "a number": np.array(5),
    "one flag": np.array([True]),
    "columns first": np.asfortranarray(GRID),
    "every other": GRID[::2, ::-3],
    "large, every other": np.arange(1 << 15)[::2],
    "other byte order": GRID.astype(">f4"),
    "times": np.array(["2026-11-23"], "datetime64[D]"),
    "texts": np.array(["go", "stop"]),
    "objects": np.array([None, "go"], object),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_arrive(array):
    body, beside = packed({"array": array, "again": [array]})
    there = [bytearray(memory) for memory in beside]
    message = unpacked(bytes(body), there)
    for found in (message["array"], message["again"][0]):
        assert found.dtype == array.dtype and found.shape == array.shape
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable


def test_only_large_arrays_travel_beside_the_message():
    assert [len(packed(ARRAYS[name])[1]) for name in ("small", "large", "empty")] == [0, 1, 0]
