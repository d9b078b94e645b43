"""Whatever a message may hold arrives as it was; everything else is refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import msgpack
import numpy as np
import pytest

from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.message_format import INLINE_BYTES, FormatError, MessageFormat
from rlrun.edges.observations import Observation
from rlrun.system.errors import ExitStatus, RunError

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
}
FORMAT = MessageFormat(Frames, Observation, ActionChunk, ChunkResult)


def sent(message, message_format=FORMAT):
    """The message after its way, and the arrays that went beside the header."""
    arrays: list[np.ndarray] = []
    header = message_format.encode(message, lambda array: arrays.append(array) or len(arrays) - 1)
    there = [bytearray(array.tobytes()) for array in arrays]
    return message_format.decode(header, lambda index, num_bytes: there[index]), arrays


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_arrive(array):
    message, _ = sent({"array": array, "again": [array]})
    for found in (message["array"], message["again"][0]):
        assert found.dtype == array.dtype and found.shape == array.shape
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable


def test_only_large_arrays_travel_beside_the_header():
    assert [len(sent(ARRAYS[name])[1]) for name in ("small", "large", "empty")] == [0, 1, 0]


def test_dataclasses_arrive():
    frames = Frames(np.zeros((2, 1, 80, 80, 3), np.uint8), np.ones((2, 3), np.float32), ("pick up", "für"))
    asked = Observation(3, frames, np.arange(2, dtype=np.uint64), 1, None, is_first=np.array([True, False]))
    found, arrays = sent({"asked": asked})
    found = found["asked"]
    assert len(arrays) == 1 and found.frames.instructions == ("pick up", "für") and found.final_frames is None
    assert (found.env_worker, found.temperature, found.policy_version) == (3, 1, 0)
    np.testing.assert_array_equal(found.sampling_keys, asked.sampling_keys)
    broken = ChunkResult.broken(frames, 2, np.array([True, False]))
    result, _ = sent(broken)
    assert result.infos == ({}, {}) and result.infra_fault.tolist() == [True, False]


def test_plain_values_arrive():
    plain = {"none": None, "text": "für", "nested": [{"a": 1.5}, {3: True}], "bytes": b"\0"}
    assert sent(plain)[0] == plain
    assert sent({"number": np.float32(0.5), "flag": np.bool_(True)})[0] == {"number": 0.5, "flag": True}


def test_errors_arrive():
    failure = RunError(
        "no", "env.num_envs", np.arange(3), "because", "do", ExitStatus.stalled, "env/1", row="a", kind="b"
    )
    found, _ = sent(failure)
    assert isinstance(found, RunError) and str(found) == str(failure)
    assert (found.exit_status, found.worker, found.row, found.kind) == (ExitStatus.stalled, "env/1", "a", "b")


@dataclasses.dataclass
class Foreign:
    number: int


@pytest.mark.parametrize("value", [object(), np.array([object()]), {1, 2}, np.array(["text"]), Foreign(1), sys])
def test_other_things_cannot_be_sent(value):
    with pytest.raises(TypeError, match="cannot be sent"):
        sent({"value": value})


def packed(code, content):
    return msgpack.packb(msgpack.ExtType(code, msgpack.packb(content)))


def nested(depth):
    data = b"\x90"
    for _ in range(depth):
        data = msgpack.packb(msgpack.ExtType(2, b"\x92\xa1x" + data))
    return data


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"", "cannot be read"),
        (b"\xc1", "cannot be read"),
        (msgpack.packb([1, 2]) + b"\x01", "cannot be read"),
        (packed(7, []), "unknown extension 7"),
        (packed(2, ["Foreign", {"number": 1}]), "unknown type 'Foreign'"),
        (packed(2, ["Frames", {}]), "Frames.images cannot be NoneType"),
        (packed(2, ["Frames", 3]), "are no map"),
        (packed(2, ["RunError", {"exit_status": 4000}]), "cannot be read"),
        (packed(1, ["|O", [1], b"x"]), "cannot be sent"),
        (packed(1, ["<f4", [-4], 0]), "cannot be sent"),
        (packed(1, ["<f4", [3], b"12345678"]), "cannot be read"),
        (packed(1, ["<f4", [0, 1 << 62], b""]), "cannot be read"),
        (packed(1, ["import os", [1], b"x"]), "cannot be read"),
        (nested(20_000), "within 8 others"),
    ],
)
def test_garbage_is_refused(header, told):
    with pytest.raises(FormatError, match=told):
        FORMAT.decode(header, lambda index, num_bytes: bytes(num_bytes))


def test_a_field_of_another_type_is_refused():
    frames = Frames(np.zeros((1, 0, 1, 1, 3), np.uint8), np.ones((1, 3), np.float32), ("go",))
    for wrong in (dataclasses.replace(frames, proprio="text"), dataclasses.replace(frames, instructions=3)):
        with pytest.raises(FormatError, match=r"Frames\.\w+ cannot be"):
            sent(wrong)


def test_it_needs_nothing_but_numpy_and_msgpack():
    """A simulator's own interpreter imports it."""
    script = (
        "import sys, rlrun.edges.message_format as f; "
        "print(f.INLINE_BYTES, *sorted({'torch', 'ray', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(INLINE_BYTES)]
