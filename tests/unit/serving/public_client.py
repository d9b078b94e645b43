"""A client written from the public description of the wire alone; it shares no code with rlrun.

Messages are msgpack maps. An array is {b"__ndarray__": True, b"data": bytes, b"dtype": str, b"shape": [...]}. The
server speaks first, with metadata. {"reset": True} has no answer; an observation has one, with "action", and with
"action_chunk" if "__action_chunk_size__" asked for it. Complaints come as text.
"""

from __future__ import annotations

import contextlib
import http.client

import msgpack
import numpy as np
from websockets.sync.client import connect

CAMERAS = {"zed_link": 720, "left_realsense_link": 480, "right_realsense_link": 480}


def pack(message: dict) -> bytes:
    def array(value):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}

    return msgpack.packb(message, default=array)


def unpack(data: bytes) -> dict:
    def array(entry):
        if b"__ndarray__" in entry:
            return np.frombuffer(entry[b"data"], entry[b"dtype"]).reshape(entry[b"shape"])
        return entry

    return msgpack.unpackb(data, object_hook=array)


def observation(num_proprio: int = 61, num_rows: int | None = None, seed: int = 0) -> dict:
    """As the evaluator flattens it: RGBA images in full resolution, proprioception, and fields that rlrun ignores."""
    draw = np.random.default_rng(seed)
    rows = () if num_rows is None else (num_rows,)
    message = {"robot_r1::proprio": draw.uniform(0, 0.05, (*rows, num_proprio)).astype(np.float32)}
    for camera, size in CAMERAS.items():
        key = f"robot_r1::robot_r1:{camera}:Camera:0"
        message[f"{key}::rgb"] = draw.integers(0, 256, (*rows, size, size, 4), dtype=np.uint8)
    message["robot_r1::cam_rel_poses"] = np.zeros((*rows, 21), np.float32)
    message["task_id"] = np.zeros((*rows, 1), np.int64)
    return message


class PublicClient:
    """Connects and reads the server's metadata."""

    def __init__(self, port: int):
        self.stack = contextlib.ExitStack()
        self.socket = self.stack.enter_context(connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None))
        self.metadata = unpack(self.socket.recv(timeout=20))

    def __enter__(self) -> PublicClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def reset(self) -> None:
        self.socket.send(pack({"reset": True}))

    def act(self, message: dict) -> dict:
        self.socket.send(pack(message))
        return unpack(self.socket.recv(timeout=60))


def health(port: int) -> tuple[int, bytes]:
    """Return status and body of GET /healthz."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    return answer.status, answer.read()
