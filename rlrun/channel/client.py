"""The policy client of an env worker, which sends observations to a rollout worker's policy server."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from rlrun.channel.connection import Connection, ConnectionLost, ServerAddress
from rlrun.channel.message import EndOfStream, Request, Response, decode, encode
from rlrun.data.message_format import FormatError
from rlrun.data.messages import ActionChunk, Observation
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import ExitStatus, RunError

T = TypeVar("T")


class PolicyClient:
    """A policy client. Keeps its connection from one collection to the next."""

    def __init__(self, env_worker: int, telemetry: Telemetry, node: str, lost_after_s: float, deadline_s: float):
        """env_worker: its rank. node: the id of this process's node. deadline_s: time limit of a response."""
        self._env_worker, self._telemetry, self._node = env_worker, telemetry, node
        self._lost_after_s, self._deadline_s = lost_after_s, deadline_s
        self._connection: Connection | None = None
        self._address: ServerAddress | None = None

    def run(
        self,
        episodes: Generator[Observation, ActionChunk, T],
        address: ServerAddress,
        rollout: str,
        collection: int,
    ) -> T:
        """Simulate episodes with the actions of a policy server. Returns the result of the generator.

        rollout: the worker at `address`, such as "rollout/0". collection: the number of the driver's request, which the
        server knows too. Raises RunError.
        """
        try:
            connection = self._connected(address)
            try:
                observation = next(episodes)
                while True:
                    connection.send(encode(Request(collection, observation)))
                    observation = episodes.send(self._response(connection, rollout, collection))
            except StopIteration as finished:
                return finished.value
            finally:
                self._end_stream(connection, collection)
        except (ConnectionLost, FormatError) as error:
            self.close()
            raise _lost(rollout, error) from error

    def _end_stream(self, connection: Connection, collection: int) -> None:
        """Send the end of the stream, so that the other env workers of the group no longer wait for this one."""
        try:
            connection.send(encode(EndOfStream(collection, self._env_worker)))
        except ConnectionLost:  # the run has ended, or its failure is reported elsewhere
            self.close()

    def close(self) -> None:
        """Disconnect; the next `run` connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, address: ServerAddress) -> Connection:
        if self._connection is None or self._address != address:
            self.close()
            self._connection = Connection(address, self._node, self._lost_after_s)
            self._address = address
        return self._connection

    def _response(self, connection: Connection, rollout: str, collection: int) -> ActionChunk:
        """Return the actions for the last request. Skips responses of an aborted collection."""
        with (
            self._telemetry.span("wait for actions", rollout),
            self._telemetry.waiting("actions", (rollout,), self._deadline_s),
        ):
            response = decode(connection.receive(self._deadline_s))
            while not isinstance(response, Response) or response.collection != collection:
                response = decode(connection.receive(self._deadline_s))
        if isinstance(response.result, RunError):
            raise response.result
        return response.result


def _lost(rollout: str, error: Exception) -> RunError:
    return RunError(
        f"{rollout}.act: its process ended, or it cannot be reached",
        cause=str(error),
        remedy="see the worker's log in the run folder, and the kernel log for out-of-memory kills; where it runs, "
        "let no firewall stand between the nodes of the run",
        exit_status=ExitStatus.worker_lost,
        worker=rollout,
        kind="policy-server-lost",
    )
