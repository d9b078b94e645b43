"""A client that speaks as openpi-client 0.1.2 does, which cannot be installed beside numpy 2.

It reads the metadata, sends each observation as one msgpack map, and takes the arrays of an answer to be chunks. It
tells the server nothing of the ends of episodes.
"""

from __future__ import annotations

from tests.unit.serving.public_client import PublicClient, pack, unpack


class OpenpiClient(PublicClient):
    """Example: OpenpiClient(8000).infer({"observation/state": …, "prompt": "open the drawer"})["actions"]."""

    def infer(self, observation: dict) -> dict:
        """Return the server's answer. Raises RuntimeError with its complaint."""
        self.socket.send(pack(observation))
        answer = self.socket.recv(timeout=60)
        if isinstance(answer, str):
            raise RuntimeError(f"Error in inference server:\n{answer}")
        return unpack(answer)


class ChunkBroker:
    """Gives the actions of a chunk one at a time; every array of an answer has the chunk as its first dimension."""

    def __init__(self, client: OpenpiClient, horizon: int):
        self._client, self._horizon, self._step = client, horizon, 0
        self._answer: dict | None = None

    def infer(self, observation: dict) -> dict:
        """Return one entry of each array."""
        if self._answer is None:
            self._answer, self._step = self._client.infer(observation), 0
        found = {key: value[self._step] if hasattr(value, "shape") else value for key, value in self._answer.items()}
        self._step += 1
        if self._step == self._horizon:
            self._answer = None
        return found
