"""The wire carries the types that VectorEnv needs, and refuses all others."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import msgpack
import numpy as np
import pytest

from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.message_format import INLINE_BYTES
from rlrun.pipe.wire import MAGIC, PREFIX, VERSION, Arena, Channel, WireClosed, WireError, WireTimeout


class Ends:
    """Both ends in one process; `simulator` owns the shared memory."""

    def __init__(self) -> None:
        fd = os.memfd_create("test")
        self.sockets = socket.socketpair()
        self.simulator = Channel(self.sockets[0], Arena(fd), is_writing_arena=True)
        self.worker = Channel(self.sockets[1], Arena(os.dup(fd)), is_writing_arena=False)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    for end in ends.sockets:
        end.close()


ARRAYS = {
    "frames": np.random.default_rng(0).integers(0, 256, (3, 1, 64, 64, 3), np.uint8),
    "large": np.arange(200_000, dtype=np.float64),
    "small": np.arange(3, dtype=np.int64),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 5), np.float32),
    "strided": np.arange(20_000, dtype=np.float32)[::2],
    "scalar": np.array(7, np.int16),
}


@pytest.mark.parametrize("sender", ["simulator", "worker"])
def test_arrays_and_plain_values_arrive_unchanged(ends: Ends, sender: str) -> None:
    receiver = ends.worker if sender == "simulator" else ends.simulator
    plain = {"none": None, "text": "für", "nested": [{"a": 1.5}, {3: True}]}
    small = {name: array for name, array in ARRAYS.items() if sender == "simulator" or array.nbytes < 100_000}
    for _ in range(2):  # the second message overwrites the shared memory of the first
        getattr(ends, sender).send({**plain, **small}, 5)
        got = receiver.receive(5)
        assert {name: got[name] for name in plain} == plain
        for name, array in small.items():
            assert got[name].dtype == array.dtype and got[name].shape == array.shape
            assert np.array_equal(got[name], array)


def test_received_arrays_are_copies(ends: Ends) -> None:
    """The next answer overwrites the shared memory, but not the arrays that the worker received."""
    first = np.full(INLINE_BYTES + 1, 1, np.uint8)
    ends.simulator.send({"a": first}, 5)
    kept = ends.worker.receive(5)["a"]
    ends.simulator.send({"a": first * 2}, 5)
    ends.worker.receive(5)
    assert np.array_equal(kept, first)


def test_large_arrays_go_through_shared_memory(ends: Ends) -> None:
    ends.simulator.send({"frames": ARRAYS["large"]}, 5)
    assert len(ends.sockets[1].recv(1 << 20)) < 200


@pytest.mark.parametrize("value", [object(), np.array([object()]), {1, 2}, np.array(["text"])])
def test_other_types_are_refused(ends: Ends, value: object) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        ends.worker.send({"value": value}, 5)


def packed_array(dtype: str, shape: list[int], offset: int) -> bytes:
    return msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb([dtype, shape, offset]))})


@pytest.mark.parametrize(
    ("data", "error", "told"),
    [
        (b"HTTP/1.1 200 OK and so on", WireError, "cannot begin"),
        (PREFIX.pack(MAGIC, VERSION + 1, 0, 1, 0) + b"\x80", WireError, f"version {VERSION + 1}"),
        (PREFIX.pack(MAGIC, VERSION, 0, 1 << 31, 0), WireError, "exceeds the limits"),
        (PREFIX.pack(MAGIC, VERSION, 0, 3, 0) + b"\xc1\xc1\xc1", WireError, "cannot be read"),
        (PREFIX.pack(MAGIC, VERSION, 0, 1, 0) + b"\x01", WireError, "is a map"),
        (b"RLRW" + struct.pack("<H", VERSION), WireTimeout, "in time"),
        (packed_array("<f4", [-4], 0), WireError, "cannot be sent"),
        (packed_array("|O", [1], 0), WireError, "cannot be sent"),
        (packed_array("<f4", [1 << 20], 0), WireError, "exceed the 0 shared bytes"),
        (packed_array("<f4", [4], -8), WireError, "negative"),
    ],
)
def test_garbage_is_refused(ends: Ends, data: bytes, error: type[Exception], told: str) -> None:
    whole = data if data.startswith((b"RLRW", b"HTTP")) else PREFIX.pack(MAGIC, VERSION, 0, len(data), 0) + data
    ends.sockets[0].sendall(whole)
    with pytest.raises(error, match=told):
        ends.worker.receive(0.2)


def test_an_array_beyond_the_message_is_refused(ends: Ends) -> None:
    header = packed_array("<f4", [1000], 0)
    ends.sockets[1].sendall(PREFIX.pack(MAGIC, VERSION, 0, len(header), 0) + header)
    with pytest.raises(WireError, match="beyond the message"):
        ends.simulator.receive(0.2)


def test_the_result_of_a_simulator_arrives(ends: Ends) -> None:
    frames = Frames(ARRAYS["frames"], np.zeros((3, 2), np.float32), ("go",) * 3)
    ends.simulator.send({"answer": ChunkResult.broken(frames, 2, np.ones(3, bool))}, 5)
    result = ends.worker.receive(5)["answer"]
    assert isinstance(result, ChunkResult) and result.frames.instructions == frames.instructions
    assert np.array_equal(result.frames.images, frames.images) and result.infos == ({}, {}, {})


def test_the_end_of_the_other_side(ends: Ends) -> None:
    ends.sockets[0].close()
    with pytest.raises(WireClosed):
        ends.worker.receive(5)
    with pytest.raises(WireClosed):
        ends.worker.send({}, 5)


def test_a_reader_that_does_not_read(ends: Ends) -> None:
    with pytest.raises(WireTimeout):
        for _ in range(100):
            ends.worker.send({"a": ARRAYS["large"]}, 0.2)
