"""openpi-client as it is published, in an environment of its own, since it needs numpy below 2.

This file is both ends: a test opens `OpenpiClient`; that environment's interpreter runs the file as a program, which
hands what it reads on standard input to openpi's classes. Messages are a length and a msgpack map.
"""

from __future__ import annotations

import struct
import sys
from typing import IO

PACKAGES = ("openpi-client==0.1.2", "typing_extensions")  # the second is imported by the first, and not required by it
_LENGTH = struct.Struct("<Q")


class OpenpiClient:
    """openpi's WebsocketClientPolicy and its ActionChunkBroker, connected to a port of this machine.

    Example::

        with OpenpiClient(8000) as client:
            actions = client.infer({"observation/state": state, "prompt": "open the drawer"})["actions"]
    """

    def __init__(self, port: int):
        import subprocess

        from tests.integration.environments import environment_python
        from tests.unit.serving.public_client import pack, unpack

        self._pack, self._unpack = pack, unpack
        command = [environment_python("openpi", PACKAGES, num_bytes=0.2e9), __file__, str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.metadata: dict = self._read()

    def __enter__(self) -> OpenpiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        assert self._process.wait(20) == 0
        self._process.stdout.close()

    def infer(self, observation: dict) -> dict:
        """Return the server's answer to WebsocketClientPolicy.infer. Raises RuntimeError with its complaint."""
        return self._ask({"observation": observation})

    def next_of_chunk(self, observation: dict, horizon: int) -> dict:
        """Return what ActionChunkBroker gives: one entry of each array of an answer, `horizon` times."""
        return self._ask({"observation": observation, "horizon": horizon})

    def _ask(self, question: dict) -> dict:
        _write(self._process.stdin, self._pack(question))
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _read(self) -> dict:
        return self._unpack(_read(self._process.stdout))


def _read(stream: IO[bytes]) -> bytes:
    """Return the next message; b"" at the end."""
    length = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(length)[0]) if length else b""


def _write(stream: IO[bytes], message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def main(port: int) -> None:
    """Answer until standard input ends."""
    from openpi_client.action_chunk_broker import ActionChunkBroker
    from openpi_client.msgpack_numpy import packb, unpackb
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    client = WebsocketClientPolicy("127.0.0.1", port)
    brokers: dict[int, ActionChunkBroker] = {}
    _write(sys.stdout.buffer, packb(client.get_server_metadata()))
    while message := _read(sys.stdin.buffer):
        question = unpackb(message)
        policy, horizon = client, question.get("horizon")
        if horizon is not None:
            policy = brokers.setdefault(horizon, ActionChunkBroker(client, horizon))
        try:
            answer = policy.infer(question["observation"])
        except RuntimeError as error:
            answer = {"error": str(error)}
        _write(sys.stdout.buffer, packb(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]))
