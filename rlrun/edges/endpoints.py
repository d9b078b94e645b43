"""Policy client of an env worker, and policy server of a rollout worker."""

from __future__ import annotations

import os
import secrets
import threading
import traceback
from collections.abc import Collection, Generator
from typing import TypeVar

import zmq

from rlrun.edges.actions import ActionChunk
from rlrun.edges.authentication import Authenticator, new_token, peer_host
from rlrun.edges.batcher import Pipeline
from rlrun.edges.connection import (
    Connection,
    ConnectionLost,
    EndOfStream,
    Request,
    Response,
    ServerAddress,
    decode,
    encode,
    listen,
)
from rlrun.edges.message_format import FormatError
from rlrun.edges.observations import Observation
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.telemetry import Telemetry

T = TypeVar("T")
ClientId = tuple[zmq.Socket, bytes]  # the server's socket, and the client's identity on it
_POLL_MS = 1000  # interval at which deadlines are checked without a message


class PolicyClient:
    """Client of an env worker, which requests actions. It keeps its connection from one collection to the next."""

    def __init__(self, env_worker: int, telemetry: Telemetry, node: str, lost_after_s: float, deadline_s: float):
        """env_worker: its rank. node: the id of this process's node. deadline_s: time limit of a response."""
        self._env_worker = env_worker
        self._telemetry = telemetry
        self._node = node
        self._lost_after_s = lost_after_s
        self._deadline_s = deadline_s
        self._connection: Connection | None = None
        self._address: ServerAddress | None = None

    def run(
        self,
        episodes: Generator[Observation, ActionChunk, T],
        address: ServerAddress,
        rollout: str,
        collection: int,
    ) -> T:
        """Run episodes with the actions of a policy server. Returns the result of the generator. Raises RunError.

        rollout: the worker at `address`, such as "rollout/0". collection: number of the driver's request, which the
        server has received as well.
        """
        try:
            connection = self._connect(address)
            try:
                observation = next(episodes)
                while True:
                    connection.send(encode(Request(collection, observation)))
                    observation = episodes.send(self._receive_response(connection, rollout, collection))
            except StopIteration as finished:
                return finished.value
            finally:
                self._end_stream(connection, collection)
        except (ConnectionLost, FormatError) as error:
            self.close()
            raise _server_lost_error(rollout, error) from error

    def _end_stream(self, connection: Connection, collection: int) -> None:
        """Send the end of the stream, so that the other env workers of the group do not wait for this one."""
        try:
            connection.send(encode(EndOfStream(collection, self._env_worker)))
        except ConnectionLost:  # the run has ended, or its failure is reported elsewhere
            self.close()

    def close(self) -> None:
        """Disconnect; the next `run` connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, address: ServerAddress) -> Connection:
        if self._connection is None or self._address != address:
            self.close()
            self._connection = Connection(address, self._node, self._lost_after_s)
            self._address = address
        return self._connection

    def _receive_response(self, connection: Connection, rollout: str, collection: int) -> ActionChunk:
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


def _server_lost_error(rollout: str, error: Exception) -> RunError:
    return RunError(
        f"{rollout}.act: its process ended, or it cannot be reached",
        cause=str(error),
        remedy="see the worker's log in the run folder, and the kernel log for out-of-memory kills; where it runs, "
        "let no firewall stand between the nodes of the run",
        exit_status=ExitStatus.worker_lost,
        worker=rollout,
        kind="policy-server-lost",
    )


class PolicyServer(threading.Thread):
    """Server thread of a rollout worker: receives requests, passes them to the pipeline, and sends the responses.

    Requests of a collection that the driver has not opened yet are queued until it does.
    """

    def __init__(
        self,
        pipeline: Pipeline[tuple[ClientId, int]],
        host: str,
        node: str,
        lost_after_s: float,
        telemetry: Telemetry,
    ):
        """Start to listen.

        host: the address to listen on, for other nodes. node: the id of this process's node. lost_after_s: time after
        which a silent node counts as lost.
        """
        super().__init__(name="policy server", daemon=True)
        self._pipeline = pipeline
        self._telemetry = telemetry
        self._pending: list[tuple[ClientId, Request | EndOfStream]] = []
        self._context = zmq.Context()
        ipc, tcp = self._sockets = (self._context.socket(zmq.ROUTER), self._context.socket(zmq.ROUTER))
        token = new_token()
        self._authenticator = Authenticator(self._context, self._sockets, token, telemetry)
        here = listen(ipc, f"ipc://@rlrun-{secrets.token_hex(8)}", lost_after_s)
        elsewhere = listen(tcp, f"tcp://{host}:*", lost_after_s)
        self.address = ServerAddress(node, here, elsewhere, token)
        self._signal = os.eventfd(0)  # wakes the thread after a change without a message
        self._is_closed = False
        self.start()

    def open(self, collection: int, members: Collection[int]) -> None:
        """See `Pipeline.open`; any thread may call it."""
        self._pipeline.open(collection, members)
        self.notify()

    def leave(self, collection: int, member: int) -> None:
        """See `Pipeline.leave`; any thread may call it."""
        self._pipeline.leave(collection, member)
        self.notify()

    def notify(self) -> None:
        """Wake the thread, since the policy may have a new version; any thread may call it."""
        os.eventfd_write(self._signal, 1)

    def close(self) -> None:
        """End the thread, and close all sockets."""
        self._is_closed = True
        self.notify()
        self.join(timeout=10)
        self._authenticator.close()
        self._context.destroy(linger=0)
        os.close(self._signal)

    def run(self) -> None:
        """Run until `close`. If the thread fails earlier, the failure is in the worker's telemetry."""
        poller = zmq.Poller()
        for source in (*self._sockets, self._signal):
            poller.register(source, zmq.POLLIN)
        try:
            while not self._is_closed:
                ready = dict(poller.poll(_POLL_MS))
                if self._signal in ready:
                    os.eventfd_read(self._signal)
                    early = self._pending
                    self._pending = []
                    for client, message in early:
                        self._dispatch(client, message)
                for socket in self._sockets:
                    if socket in ready:
                        self._receive_all(socket)
                self._send_results()
        except BaseException:
            self._telemetry.fail(traceback.format_exc())
            raise

    def _receive_all(self, socket: zmq.Socket) -> None:
        while socket.poll(0):
            identity, *frames = socket.recv_multipart(zmq.DONTWAIT, copy=False)
            self._receive((socket, identity.bytes), frames)

    def _receive(self, client: ClientId, frames: list[zmq.Frame]) -> None:
        """Handle one message. A malformed message is reported and dropped."""
        descriptor = int(str(frames[0].get("__fd"))) if frames else -1
        try:
            if not frames:
                raise FormatError("a message without a frame")
            message = decode(frames)
            if isinstance(message, Response):
                raise FormatError("a response, sent to a server")
        except FormatError as error:
            self._authenticator.report(peer_host(descriptor), str(error))
            return
        self._authenticator.mark_client(descriptor)
        self._dispatch(client, message)

    def _dispatch(self, client: ClientId, message: Request | EndOfStream) -> None:
        if message.collection > self._pipeline.collection:
            self._pending.append((client, message))
        elif isinstance(message, EndOfStream):
            self._pipeline.leave(message.collection, message.env_worker)
        else:
            self._pipeline.add(message.collection, message.observation, (client, message.collection))

    def _send_results(self) -> None:
        for (client, collection), result in self._pipeline.results():
            socket, identity = client
            frames = [identity, *encode(Response(collection, result))]
            socket.send_multipart(frames, copy=False)  # dropped if the client has ended, which the driver notices
